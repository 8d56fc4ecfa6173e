use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a token at the first call that is valid for `seconds`. The second call hangs if that is more than
/// a minute; all other calls fail.
#[derive(Debug)]
struct Failing {
    calls: AtomicU32,
    seconds: u64,
}

impl Failing {
    fn after(calls: u32, seconds: u64) -> Arc<Self> {
        Arc::new(Self { calls: AtomicU32::new(calls), seconds })
    }
}

#[async_trait]
impl TokenCredential for Failing {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let end = SystemTime::now() + Duration::from_secs(self.seconds);
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(AccessToken::new("first", end.into())),
            1 if self.seconds > 60 => std::future::pending().await,
            _ => Err(azure_core::Error::with_message(ErrorKind::Io, "down")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn valid_token_outlives_an_endpoint_that_hangs_or_fails() {
    let inner = Failing::after(0, 3_600);
    let credential = TokenSource::Custom(Arc::clone(&inner) as _).credential().unwrap();
    let began = Instant::now();
    for (pause, asked) in [(FETCH_INTERVAL, 1), (Duration::ZERO, 2), (Duration::ZERO, 2), (Duration::ZERO, 2)]
    {
        let token = credential.get_token(&["scope"], None).await.unwrap();
        assert_eq!(token.token.secret(), "first");
        assert_eq!(inner.calls.load(Ordering::Relaxed), asked);
        tokio::time::sleep(pause).await;
    }
    assert_eq!(began.elapsed(), FETCH_INTERVAL + REFRESH_TIMEOUT, "only one call waits, and not for long");
    tokio::time::sleep(FETCH_INTERVAL).await;
    let token = credential.get_token(&["scope"], None).await.unwrap();
    assert_eq!(token.token.secret(), "first");
    assert_eq!(inner.calls.load(Ordering::Relaxed), 3);
}

/// A request just before the token's expiry would be refused for good.
#[tokio::test(start_paused = true)]
async fn token_that_is_about_to_end_is_not_used_again() {
    let credential = TokenSource::Custom(Failing::after(0, 10)).credential().unwrap();
    assert_eq!(credential.get_token(&["scope"], None).await.unwrap().token.secret(), "first");
    let error = credential.get_token(&["scope"], None).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io), "{error}");
}

#[tokio::test(start_paused = true)]
async fn failure_without_a_valid_token_is_reported() {
    let credential = TokenSource::Custom(Failing::after(2, 3_600)).credential().unwrap();
    let error = credential.get_token(&["scope"], None).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io) && error.to_string().contains("down"), "{error}");
}

/// Returns a token after a time.
#[derive(Debug)]
struct Slow(Duration);

#[async_trait]
impl TokenCredential for Slow {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        tokio::time::sleep(self.0).await;
        Ok(AccessToken::new("slow", (SystemTime::now() + Duration::from_secs(3_600)).into()))
    }
}

fn first_that_works(managed: Arc<dyn TokenCredential>, tools: Arc<dyn TokenCredential>) -> FirstThatWorks {
    FirstThatWorks { managed, tools, chosen: OnceLock::new(), tools_until: Mutex::default() }
}

/// A container that is starting, with a developer's login in its environment. Before, every fetch waited for
/// an identity, and started a tool.
#[tokio::test(start_paused = true)]
async fn slow_managed_identity_is_asked_again_after_some_minutes() {
    let managed = Arc::new(SlowAtFirst::default());
    let credential = first_that_works(Arc::clone(&managed) as _, Arc::new(Slow(Duration::ZERO)));
    for (secret, asked) in [("slow", 1), ("slow", 1), ("managed", 2), ("managed", 3)] {
        let token = credential.get_token(&["scope"], None).await.unwrap();
        assert_eq!((token.token.secret(), managed.0.load(Ordering::Relaxed)), (secret, asked));
        tokio::time::sleep(TOOLS_PERIOD * 2 / 3).await;
    }
}

/// The developer logs out while the tools are used.
#[tokio::test(start_paused = true)]
async fn managed_identity_is_asked_when_the_tools_fail() {
    let managed = Arc::new(SlowAtFirst::default());
    let tools = Failing::after(0, 3_600);
    let credential = first_that_works(managed, Arc::clone(&tools) as _);
    assert_eq!(credential.get_token(&["scope"], None).await.unwrap().token.secret(), "first");
    tools.calls.store(2, Ordering::Relaxed);
    assert_eq!(credential.get_token(&["scope"], None).await.unwrap().token.secret(), "managed");
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_slow_identity_and_of_the_tools_are_both_reported() {
    let credential = first_that_works(Arc::new(Slow(Duration::from_secs(10))), Failing::after(2, 3_600));
    let error = credential.get_token(&["scope"], None).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io), "{error}");
    assert!(error.to_string().contains("managed identity") && error.to_string().contains("down"), "{error}");
}

/// Returns no token; the text is the reason.
#[derive(Debug)]
struct Refusing(&'static str);

#[async_trait]
impl TokenCredential for Refusing {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        Err(azure_core::Error::with_message(ErrorKind::Credential, self.0))
    }
}

/// The operator of a machine with an identity was told to log in to `az`.
#[tokio::test]
async fn refusals_of_the_identity_and_of_the_tools_are_both_reported() {
    let long = format!("no such identity; {}", "see ".repeat(100)).leak();
    let credential = first_that_works(Arc::new(Refusing(long)), Arc::new(Refusing("run az login")));
    let error = CachingCredential::new(Arc::new(credential)).get_token(&["scope"], None).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Credential), "{error}");
    let text = error.to_string();
    assert!(text.contains("no such identity") && text.contains("run az login"), "{text}");
}

/// Returns a token after ten seconds at the first call, and at once from then on.
#[derive(Debug, Default)]
struct SlowAtFirst(AtomicU32);

#[async_trait]
impl TokenCredential for SlowAtFirst {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        Ok(AccessToken::new("managed", (SystemTime::now() + Duration::from_secs(3_600)).into()))
    }
}

/// The renewal of a lease of 30 seconds has three seconds.
#[tokio::test(start_paused = true)]
async fn fetch_continues_when_its_caller_stops_waiting() {
    let credential = TokenSource::Custom(Arc::new(Slow(Duration::from_secs(13)))).credential().unwrap();
    let mut late = 0;
    for _ in 0..8 {
        let token = timeout(Duration::from_secs(3), credential.get_token(&["scope"], None)).await;
        late += u32::from(token.is_err());
    }
    assert_eq!(late, 4);
}

/// The first caller's runtime does not run after its call.
#[test]
fn fetch_of_a_runtime_that_stands_still_is_followed_by_another() {
    let credential = TokenSource::Custom(Arc::new(Slow(Duration::from_secs(13)))).credential().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (first, second) = (runtime(), runtime());
    let began = async { timeout(Duration::from_secs(1), credential.get_token(&["scope"], None)).await };
    assert!(first.block_on(began).is_err());
    second.block_on(async {
        tokio::time::sleep(FETCH_INTERVAL + Duration::from_secs(1)).await;
        credential.get_token(&["scope"], None).await.unwrap();
    });
}

/// A caller that began later, behind a lock of the SDK, would get the failure after the end of its own
/// request.
#[tokio::test(start_paused = true)]
async fn callers_wait_for_one_fetch_and_fail_together() {
    let credential = TokenSource::Custom(Arc::new(Slow(Duration::MAX))).credential().unwrap();
    let began = Instant::now();
    for _ in 0..3 {
        let error = credential.get_token(&["scope"], None).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io), "{error}");
    }
    assert_eq!(began.elapsed(), FETCH_TIMEOUT);
}

#[test]
fn only_transient_failures_count_as_io_failures() {
    let answered = |status: u16| {
        let answer = ErrorKind::HttpResponse { status: status.into(), error_code: None, raw_response: None };
        let inner = azure_core::Error::with_message(answer, "from Entra");
        azure_core::Error::with_error(ErrorKind::Credential, inner, "wrapped")
    };
    for (error, expected) in [
        (answered(503), true),
        (answered(429), true),
        (answered(400), false),
        (azure_core::Error::with_message(ErrorKind::Credential, "no identity"), false),
        (azure_core::Error::with_message(ErrorKind::Io, "refused"), true),
        (azure_core::Error::with_message(ErrorKind::Connection, "no such host"), true),
    ] {
        assert_eq!(is_transient(&error), expected, "{error:?}");
    }
}
