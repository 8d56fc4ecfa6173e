//! Makes the errors for unknown names.

use syn::Ident;

/// Returns the error for a name that is not in `known`, with a suggestion if a known name is similar.
pub(super) fn unknown(name: &Ident, known: &[&str]) -> syn::Error {
    let advice = match suggestion(name, known) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => {
            let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!("use one of {}", known.join(", "))
        }
    };
    syn::Error::new(name.span(), format!("unknown attribute `{name}`; {advice}"))
}

/// Returns the known name that is most similar to a misspelt name.
pub(super) fn suggestion<'a>(name: &Ident, known: &[&'a str]) -> Option<&'a str> {
    let written = name.to_string();
    let nearest = known.iter().map(|known| (distance(&written, known), *known)).min();
    nearest.filter(|(distance, known)| *distance <= 1 + known.len() / 4).map(|(_, known)| known)
}

/// Returns the Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
