//! A search that is continued page by page, in segments that overlap.

use super::*;

// review 34 b, B2: each page read all overlapping segments again, and came one segment further.
#[tokio::test(start_paused = true)]
async fn continued_search_reads_as_many_new_segments_as_old_ones() {
    // Quiet: the planned delays are the only time that passes.
    let faulty = Faulty::quiet(&memory::open_on(Runtime::paused()));
    // 40 workers write at a time, and begin another segment twice.
    for number in 0..120 {
        let (journal, first) = (journal_of(&faulty.storage()), number / 40 * 1_000 + number % 40);
        journal.append(entries(first..first + 1, "a")).await.unwrap();
        journal.append(entries(first + 900..first + 901, "a")).await.unwrap();
    }
    // Of the segments of one moment, half can be read in five seconds.
    faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_secs(1)));
    let (journal, reads) = (journal_of(&faulty.storage()), faulty.calls_of(Operation::GetBlob));
    let (mut query, mut found, mut pages) = (everything(), 0, 0);
    loop {
        let page = journal.search(&query).await.unwrap();
        found += page.entries.len();
        pages += 1;
        if page.searched_to.is_none() {
            break;
        }
        query.until = page.searched_to;
    }
    assert_eq!(found, 240, "each entry is on one page");
    assert!(pages <= 12, "{pages} pages");
    let reads = faulty.calls_of(Operation::GetBlob) - reads;
    assert!(reads <= 300, "{reads} reads of 120 segments");
}
