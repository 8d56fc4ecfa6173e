use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

const MOST: usize = 8;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "blocks", kind = "block")]
struct Block<const N: usize> {
    #[message(length(1..=N))]
    text: String,
    #[message(range(1..=MOST))]
    size: usize,
    #[message(range(..N))]
    at: usize,
}

#[derive(Validate)]
struct Grid<T, const N: usize> {
    #[message(nested)]
    cells: [T; N],
}

#[derive(Validate)]
struct Cell;

#[test]
fn compiles_and_checks() {
    assert!(Block::<4> { text: "abcd".into(), size: 8, at: 3 }.validate().is_ok());
    assert_eq!(Block::<3> { text: "abcd".into(), size: 9, at: 3 }.validate().unwrap_err().len(), 3);
    assert!(Grid { cells: [Cell, Cell] }.validate().is_ok());
}
