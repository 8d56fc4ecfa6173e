//! Ranges over numbers of every type.

use jobqueue::Validate;
use proptest::prelude::*;
use std::ops::RangeInclusive;

/// Numbers of the whole type, of the range, and its two ends.
fn near<T: Arbitrary + Copy>(range: RangeInclusive<T>) -> impl Strategy<Value = T>
where
    RangeInclusive<T>: Strategy<Value = T>,
{
    let (low, high) = (*range.start(), *range.end());
    prop_oneof![any::<T>(), range, Just(low), Just(high)]
}

macro_rules! numbers {
    ($($name:ident: $type:ty, $low:literal, $high:literal;)+) => {$(
        #[derive(Validate)]
        #[allow(non_camel_case_types)]
        struct $name {
            #[message(range($low..=$high))]
            closed: $type,
            #[message(range($low..$high))]
            open: $type,
        }

        proptest! {
            #[test]
            fn $name(n in near::<$type>($low..=$high)) {
                let found: Vec<_> = super::broken(&$name { closed: n, open: n });
                prop_assert_eq!(found.contains(&"closed range".to_owned()), !($low..=$high).contains(&n));
                prop_assert_eq!(found.contains(&"open range".to_owned()), !($low..$high).contains(&n));
            }
        }
    )+};
}
numbers! {
    u8_range: u8, 3, 200;
    u16_range: u16, 3, 40_000;
    u32_range: u32, 3, 4_000_000_000;
    u64_range: u64, 3, 9_007_199_254_740_993;
    u128_range: u128, 3, 340282366920938463463374607431768211454;
    usize_range: usize, 3, 70_000;
    i8_range: i8, -100, 100;
    i16_range: i16, -3, 30_000;
    i32_range: i32, -2_000_000_000, 3;
    i64_range: i64, -9_007_199_254_740_993, 3;
    i128_range: i128, -3, 170141183460469231731687303715884105726;
    isize_range: isize, -3, 3;
    f32_range: f32, -0.5, 1e30;
    f64_range: f64, -0.5, 1e300;
}
