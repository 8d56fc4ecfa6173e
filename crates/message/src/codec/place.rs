//! Finds the field at a position in JSON text. Errors name the field, because a line and a column are useless
//! without the text.
//!
//! The text is read a second time, but only after an error, and in code that is compiled once for all message
//! types. The producer of the text chooses its depth, so it is read in a loop, without recursion.

/// The maximum number of characters shown of a key.
const MAX_KEY_CHARS: usize = 64;
/// The depth to which `serde_json` reads values. It skips deeper values, so no error concerns a field in
/// them.
const MAX_DEPTH: usize = 128;

/// Returns the path of the value that ends at a position, or begins at or after it: `lines[0].cents`. The
/// path is empty for the whole text. `line` and `column` count from 1, as in an error of `serde_json`.
pub(super) fn path_at(text: &str, line: usize, column: usize) -> String {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    let target = lines.map(str::len).sum::<usize>() + column;
    let mut reader = Reader { bytes: text.as_bytes(), at: 0, open: Vec::new(), deeper: 0 };
    while reader.at < target {
        if reader.token().is_none() {
            return String::new();
        }
    }
    let mut path = String::new();
    for place in &reader.open {
        place.append_to(&mut path);
    }
    path
}

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
    /// The place within each open list and object, from the outermost inwards.
    open: Vec<Place<'t>>,
    /// The number of open lists and objects deeper than [`MAX_DEPTH`].
    deeper: usize,
}

enum Place<'t> {
    /// The index of an item.
    Item(usize),
    /// A key in quotes; `None` before the first key of an object and after a comma.
    Member(Option<&'t [u8]>),
}

impl<'t> Reader<'t> {
    /// Reads a string or a single character. Returns `None` at the end of the text.
    fn token(&mut self) -> Option<()> {
        let byte = *self.bytes.get(self.at)?;
        if byte == b'"' {
            let string = self.string();
            if self.deeper == 0
                && let Some(Place::Member(key @ None)) = self.open.last_mut()
            {
                *key = Some(string);
            }
            return Some(());
        }
        self.at += 1;
        match byte {
            b'{' | b'[' if self.open.len() == MAX_DEPTH => self.deeper += 1,
            b'{' => self.open.push(Place::Member(None)),
            b'[' => self.open.push(Place::Item(0)),
            b'}' | b']' if self.deeper > 0 => self.deeper -= 1,
            b'}' | b']' => drop(self.open.pop()),
            b',' if self.deeper == 0 => match self.open.last_mut() {
                Some(Place::Item(index)) => *index += 1,
                Some(Place::Member(key)) => *key = None,
                None => {}
            },
            _ => {}
        }
        Some(())
    }

    /// Reads a string and returns it with its quotes.
    fn string(&mut self) -> &'t [u8] {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.bytes.get(self.at) {
            self.at += if *byte == b'\\' { 2 } else { 1 };
            if *byte == b'"' {
                break;
            }
        }
        self.bytes.get(start..self.at).unwrap_or_default()
    }
}

impl Place<'_> {
    fn append_to(&self, path: &mut String) {
        let key: String = match self {
            Self::Item(index) => return path.push_str(&format!("[{index}]")),
            Self::Member(None) => return,
            Self::Member(Some(key)) => serde_json::from_slice(key).unwrap_or_default(),
        };
        let plain = |c: char| c.is_alphanumeric() || "_-".contains(c);
        if key.is_empty() || key.len() > MAX_KEY_CHARS || !key.chars().all(plain) {
            let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
            return path.push_str(&format!("[{shown:?}]"));
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(&key);
    }
}
