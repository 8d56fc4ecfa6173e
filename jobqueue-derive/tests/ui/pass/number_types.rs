use std::num::{NonZero, NonZeroI16};

use jobqueue::Validate;

#[derive(Default, Validate)]
struct Numbers {
    #[message(range(1..=2))]
    a_u8: u8,
    #[message(range(1..=2))]
    a_u16: u16,
    #[message(range(1..=2))]
    a_u32: u32,
    #[message(range(1..=2))]
    a_u64: u64,
    #[message(range(1..=2))]
    a_u128: u128,
    #[message(range(1..=2))]
    a_usize: usize,
    #[message(range(-1..2))]
    a_i8: i8,
    #[message(range(-1..2))]
    a_i16: i16,
    #[message(range(-1..2))]
    a_i32: i32,
    #[message(range(-1..2))]
    a_i64: i64,
    #[message(range(-1..2))]
    a_i128: i128,
    #[message(range(-1..2))]
    a_isize: isize,
    #[message(range(1..=2))]
    a_f32: f32,
    #[message(range(1..=2))]
    a_f64: f64,
    #[message(range(2..))]
    non_zero: Option<NonZero<u8>>,
    #[message(range(..=-2))]
    non_zero_signed: Option<NonZeroI16>,
    #[message(range(-128..=127))]
    whole: i8,
    #[message(range(0x10..=0b1_0000))]
    bases: Option<u8>,
}

#[test]
fn compiles_and_checks() {
    let numbers = Numbers { bases: Some(16), ..Default::default() };
    // The unsigned ones and the floats are 0.
    assert_eq!(numbers.validate().unwrap_err().len(), 8);
}
