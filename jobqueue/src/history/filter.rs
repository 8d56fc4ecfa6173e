//! A Bloom filter of the ids in a segment: it never denies an id that is there, and takes one in 300 others for one that is.
//!
//! Written by hand, because its bytes are kept in storages: a crate's form would tie them to that crate's version.

/// The bits for each id.
const BITS: usize = 12;
/// The bits that an id sets.
const PROBES: u32 = 6;

/// A filter with room for a number of ids.
#[derive(Debug)]
pub(super) struct Filter(Vec<u8>);

impl Filter {
    pub(super) fn with_room_for(ids: usize) -> Self {
        Self(vec![0; (ids * BITS).div_ceil(8).max(8)])
    }

    pub(super) fn insert(&mut self, hash: u64) {
        for (byte, bit) in probes(hash, self.0.len()) {
            self.0[byte] |= bit;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns whether a filter of these bytes may have the id; true for the bytes of no filter.
pub(super) fn may_contain(filter: &[u8], hash: u64) -> bool {
    filter.is_empty() || probes(hash, filter.len()).all(|(byte, bit)| filter[byte] & bit != 0)
}

/// Returns the places of an id in a filter of so many bytes.
fn probes(hash: u64, bytes: usize) -> impl Iterator<Item = (usize, u8)> {
    let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
    let bits = bytes as u64 * 8;
    (0..PROBES).map(move |probe| {
        let place = u64::from(start.wrapping_add(probe.wrapping_mul(step)));
        let bit = (place * bits) >> 32;
        ((bit >> 3) as usize, 1 << (bit & 7))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::id::Id;

    #[test]
    fn filter_has_all_its_ids_and_few_others() {
        let mut filter = Filter::with_room_for(10_000);
        let hash = |n: u32| Id::new(&format!("job-{n}")).hash();
        (0..10_000).for_each(|n| filter.insert(hash(n)));
        assert!((0..10_000).all(|n| may_contain(filter.bytes(), hash(n))));
        let taken = (10_000..110_000).filter(|n| may_contain(filter.bytes(), hash(*n))).count();
        assert!(taken < 600, "{taken} of 100,000");
    }
}
