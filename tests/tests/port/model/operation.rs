//! The operations on a storage, and the frequency with which each is tried.

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

/// An operation. Queues, blobs and lease ids are small numbers; messages and tags are picked from those seen
/// so far, counted from the newest. Times are in milliseconds.
#[derive(Debug, Clone)]
pub enum Op {
    Advance(u64),
    CreateQueue { queue: u8, metadata: u8 },
    DeleteQueue { queue: u8 },
    ListQueues,
    Properties { queue: u8 },
    SetMetadata { queue: u8, metadata: u8 },
    Put { queue: u8, text: Text, delay: u64, ttl: Option<u64> },
    PutAll { queue: u8, texts: Vec<Text> },
    Get { queue: u8, count: u32, visibility: u64 },
    Peek { queue: u8, count: u32 },
    Update { queue: u8, message: Pick, visibility: u64, text: Option<Text>, expired: bool },
    Delete { queue: u8, message: Pick, expired: bool },
    DeleteAll { queue: u8, messages: Vec<Pick>, expired: bool },
    Clear { queue: u8 },
    Blob { blob: u8, action: BlobOp },
    CreateContainer,
    DeleteContainer,
    ListBlobs { prefix: &'static str },
}

/// The choice of a message, and of a holder of its receipt; they differ now and then.
#[derive(Debug, Clone, Copy)]
pub struct Pick {
    pub id: usize,
    pub receipt: usize,
}

/// The kind of a message's text.
#[derive(Debug, Clone, Copy)]
pub enum Text {
    Number(u16),
    Empty,
    Largest,
    TooLarge,
    TooLargeEscaped,
    Illegal,
    Unicode,
}

/// An operation on one blob.
#[derive(Debug, Clone)]
pub enum BlobOp {
    Put { content: u8, condition: Option<Option<usize>>, lease: Option<u8>, bad_metadata: bool },
    Get { max: u64 },
    Properties,
    Delete { lease: Option<u8> },
    Acquire { lease: u8, duration: u64 },
    Renew { lease: u8 },
    Release { lease: u8 },
}

/// Any operation may follow any other, so the state is empty.
#[derive(Debug)]
pub struct Operations;

impl ReferenceStateMachine for Operations {
    type State = ();
    type Transition = Op;

    fn init_state() -> BoxedStrategy<()> {
        Just(()).boxed()
    }

    fn transitions((): &()) -> BoxedStrategy<Op> {
        prop_oneof![
            4 => on_time(),
            14 => on_messages(),
            3 => on_queues(),
            8 => (0..2_u8, on_blobs()).prop_map(|(blob, action)| Op::Blob { blob, action }),
            1 => on_containers(),
        ]
        .boxed()
    }

    fn apply((): (), _: &Op) {}
}

/// Few different times, so that they often coincide to the millisecond.
fn time() -> impl Strategy<Value = u64> {
    prop::sample::select(&[1, 500, 999, 1_000, 1_001, 2_000, 5_000, 15_000][..])
}

fn on_time() -> impl Strategy<Value = Op> {
    time().prop_map(Op::Advance)
}

fn on_queues() -> impl Strategy<Value = Op> {
    let queue = 0..3_u8;
    prop_oneof![
        4 => (queue.clone(), 0..4_u8).prop_map(|(queue, metadata)| Op::CreateQueue { queue, metadata }),
        1 => queue.clone().prop_map(|queue| Op::DeleteQueue { queue }),
        1 => Just(Op::ListQueues),
        4 => queue.clone().prop_map(|queue| Op::Properties { queue }),
        2 => (queue.clone(), 0..4_u8).prop_map(|(queue, metadata)| Op::SetMetadata { queue, metadata }),
        1 => queue.prop_map(|queue| Op::Clear { queue }),
    ]
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![
        20 => any::<u16>().prop_map(Text::Number),
        1 => Just(Text::Empty),
        1 => Just(Text::Largest),
        1 => Just(Text::TooLarge),
        1 => Just(Text::TooLargeEscaped),
        1 => Just(Text::Illegal),
        1 => Just(Text::Unicode),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    let recent = prop_oneof![6 => 0..3_usize, 1 => 0..40_usize];
    prop_oneof![
        8 => recent.clone().prop_map(|id| Pick { id, receipt: id }),
        1 => (recent.clone(), recent).prop_map(|(id, receipt)| Pick { id, receipt }),
    ]
}

fn on_messages() -> impl Strategy<Value = Op> {
    // Mostly the queue that exists from the start.
    let queue = || prop_oneof![6 => Just(0_u8), 1 => 1..3_u8];
    let visibility =
        || prop_oneof![10 => time(), 2 => Just(0), 1 => Just(604_800_000), 1 => Just(604_800_001)];
    let delay = prop_oneof![6 => Just(0), 3 => time(), 1 => Just(604_800_001)];
    let ttl = prop_oneof![3 => Just(None), 3 => time().prop_map(Some), 1 => Just(Some(0))];
    let count = || prop_oneof![6 => 1..4_u32, 2 => Just(32), 1 => Just(0), 1 => Just(33)];
    prop_oneof![
        8 => (queue(), text(), delay, ttl)
            .prop_map(|(queue, text, delay, ttl)| Op::Put { queue, text, delay, ttl }),
        1 => (queue(), prop::collection::vec(text(), 0..4)).prop_map(|(queue, texts)| Op::PutAll { queue, texts }),
        8 => (queue(), count(), visibility())
            .prop_map(|(queue, count, visibility)| Op::Get { queue, count, visibility }),
        3 => (queue(), count()).prop_map(|(queue, count)| Op::Peek { queue, count }),
        6 => (queue(), pick(), visibility(), prop::option::of(text()), any::<bool>()).prop_map(
            |(queue, message, visibility, text, expired)| Op::Update { queue, message, visibility, text, expired }
        ),
        4 => (queue(), pick(), any::<bool>())
            .prop_map(|(queue, message, expired)| Op::Delete { queue, message, expired }),
        1 => (queue(), prop::collection::vec(pick(), 0..4), any::<bool>())
            .prop_map(|(queue, messages, expired)| Op::DeleteAll { queue, messages, expired }),
    ]
}

fn on_blobs() -> impl Strategy<Value = BlobOp> {
    let lease = || 0..2_u8;
    let optional = || prop::option::of(0..2_u8);
    let condition = prop_oneof![3 => Just(None), 2 => Just(Some(None)), 2 => (0..4_usize).prop_map(|tag| Some(Some(tag)))];
    let duration = prop_oneof![
        8 => prop::sample::select(&[15_000_u64, 20_000, 60_000][..]),
        1 => prop::sample::select(&[0_u64, 14_999, 15_500, 61_000][..]),
    ];
    prop_oneof![
        6 => (any::<u8>(), condition, optional(), prop::bool::weighted(0.05)).prop_map(
            |(content, condition, lease, bad_metadata)| BlobOp::Put { content, condition, lease, bad_metadata }
        ),
        2 => (0..300_u64).prop_map(|max| BlobOp::Get { max }),
        3 => Just(BlobOp::Properties),
        1 => optional().prop_map(|lease| BlobOp::Delete { lease }),
        4 => (lease(), duration).prop_map(|(lease, duration)| BlobOp::Acquire { lease, duration }),
        3 => lease().prop_map(|lease| BlobOp::Renew { lease }),
        2 => lease().prop_map(|lease| BlobOp::Release { lease }),
    ]
}

fn on_containers() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::CreateContainer),
        1 => Just(Op::DeleteContainer),
        3 => prop::sample::select(&["", "b", "x"][..]).prop_map(|prefix| Op::ListBlobs { prefix }),
    ]
}
