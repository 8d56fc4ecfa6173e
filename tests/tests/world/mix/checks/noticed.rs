//! Planted defects that handlers report immediately.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::{Error, SendOptions};
use jobqueue_testing::world::World;

use super::planted::plan;
use crate::mix::backend::Backend;
use crate::mix::diary::Diary;
use crate::mix::features::Feature;
use crate::mix::messages::Work;
use crate::mix::plan::Plan;
use crate::mix::run;
use crate::mix::spec::{Script, filling};

/// Runs the world of a plan with `scenario` instead of the plan's actions, and returns the findings of its
/// handlers.
fn noticed<F>(plan: &Plan, scenario: impl Fn(World, Diary) -> F + Send + Sync + 'static) -> Vec<&'static str>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let diary = Diary::new(plan, false);
    let own = diary.clone();
    let world = run::world(&Backend::AzureLike, plan, &diary);
    let world = world.scenario(move |world| scenario(world, own.clone()));
    drop(world.run_with(plan.noise, &[]));
    diary.found().into_iter().map(|found| found.what).collect()
}

#[test]
fn payload_that_was_not_sent_is_reported() {
    let send = |filling: String| {
        noticed(&plan(&[], []), move |world, _| {
            let work = Work { id: "j1.".to_owned(), script: Script::default(), filling: filling.clone() };
            async move {
                let node = world.node("sender");
                let queue = node.queue::<Work>().await?;
                node.send_with(&queue, &work, "j1.", SendOptions::new()).await.map(drop)
            }
        })
    };
    assert_eq!(send(filling("j1.", 10)), [""; 0]);
    assert_eq!(send(filling("j2.", 10)), ["a payload is not what was sent"]);
}

#[test]
fn second_leader_is_reported() {
    // A leader under a second name leads concurrently with the leader of the world, which is allowed.
    let lead = |is_candidate: bool| {
        noticed(&plan(&[Feature::Leader], []), move |world, diary| async move {
            let node = world.node("other");
            let leader = Arc::new(Leader::new(&node.storage(), "other")?.lease(Duration::from_secs(15)));
            if is_candidate {
                diary.candidate(node.name(), &leader);
            }
            let leads = async move {
                let sleeps = |_| tokio::time::sleep(Duration::from_secs(40));
                drop(leader.run_while_leader(sleeps).await);
            };
            drop(node.spawn(leads));
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(())
        })
    };
    assert_eq!(lead(false), [""; 0]);
    assert!(lead(true).contains(&"two processes lead"));
}
