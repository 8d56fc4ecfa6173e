//! Finds the field at a position of a JSON text. Errors name the field, because line and column are useless without the
//! text.
//!
//! The text is read a second time for it, but only after an error, and in no code that is compiled for each type.

/// The maximum number of characters of a key that are shown.
const MAX_KEY: usize = 64;

/// Returns the path of the value that ends at, or begins at or after, a position: `lines[0].cents`. It is empty for the whole
/// text. `line` and `column` count from 1, as in an error of `serde_json`.
pub(super) fn path_at(text: &str, line: usize, column: usize) -> String {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    let target = lines.map(str::len).sum::<usize>() + column;
    let mut reader = Reader { bytes: text.as_bytes(), at: 0, target, path: String::new() };
    if reader.value() { reader.path } else { String::new() }
}

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
    target: usize,
    path: String,
}

impl Reader<'_> {
    /// Reads a value. Returns true if the position is at this value or within it; the path is then complete.
    ///
    /// It recurses no deeper than `serde_json`, which has come to the position.
    fn value(&mut self) -> bool {
        self.spaces();
        if self.at >= self.target {
            return true;
        }
        match self.peek() {
            Some(b'{') => self.members(),
            Some(b'[') => self.items(),
            Some(b'"') => drop(self.string()),
            _ => {
                while self.peek().is_some_and(|byte| !b" \t\r\n,]}".contains(&byte)) {
                    self.at += 1;
                }
            }
        }
        self.at >= self.target
    }

    fn members(&mut self) {
        self.at += 1;
        loop {
            self.spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'"') => {
                    let (length, key) = (self.path.len(), self.string());
                    self.spaces();
                    if self.peek() == Some(b':') {
                        self.at += 1;
                    }
                    self.enter(&key);
                    if self.value() {
                        return;
                    }
                    self.path.truncate(length);
                }
                // The end of the object, or of what can be read.
                _ => return self.at += 1,
            }
        }
    }

    fn items(&mut self) {
        self.at += 1;
        let (length, mut index) = (self.path.len(), 0_usize);
        loop {
            self.spaces();
            match self.peek() {
                Some(b',') => (self.at, index) = (self.at + 1, index + 1),
                Some(b']') | None => return self.at += 1,
                Some(_) => {
                    let before = self.at;
                    self.path.push_str(&format!("[{index}]"));
                    if self.value() {
                        return;
                    }
                    self.path.truncate(length);
                    // What is no value is passed over.
                    self.at += usize::from(self.at == before);
                }
            }
        }
    }

    fn enter(&mut self, key: &str) {
        let plain = |c: char| c.is_alphanumeric() || "_-".contains(c);
        if key.is_empty() || key.len() > MAX_KEY || !key.chars().all(plain) {
            let shown: String = key.chars().take(MAX_KEY).collect();
            self.path.push_str(&format!("[{shown:?}]"));
            return;
        }
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
    }

    /// Passes over a string and returns its text.
    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        let raw = self.bytes.get(start..self.at).unwrap_or_default();
        serde_json::from_slice(raw).unwrap_or_default()
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}
