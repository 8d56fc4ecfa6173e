//! Repeatable randomness.

/// Returns the seed of a test: the value of `JOBQUEUE_SEED`, to repeat a run, or else a random one. Prints
/// the seed, so that a failure shows it.
///
/// # Panics
/// If the variable is not a number.
pub fn seed() -> u64 {
    let given = std::env::var("JOBQUEUE_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().expect("JOBQUEUE_SEED is a number"));
    println!("JOBQUEUE_SEED={seed}");
    seed
}
