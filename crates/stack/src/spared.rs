//! What spares the clients of a server their calls (`spare_calls`): each can be left out, to see what it
//! is worth, or to find out whether it is the one to blame.

/// Means by which calls are spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spared {
    /// Names, statuses and bytes are found on a shelf.
    pub shelf: bool,
    /// Files that are on the shelf are opened by posts.
    pub opens: bool,
    /// What follows where a program goes through a directory is put on the shelf before it asks.
    pub ahead: bool,
    /// Files that one process alone has open are written and changed by posts.
    pub writes: bool,
    /// Large files are read through windows.
    pub windows: bool,
    /// Where they lie in memory, these have no copies: clients map the medium.
    pub direct: bool,
}

impl Spared {
    /// All of them: the default.
    pub const ALL: Self =
        Self { shelf: true, opens: true, ahead: true, writes: true, windows: true, direct: true };
    /// None: whatever a process asks is a call.
    pub const NONE: Self =
        Self { shelf: false, opens: false, ahead: false, writes: false, windows: false, direct: false };
    /// Their names, in the key's value.
    const NAMES: [&str; 6] = ["shelf", "opens", "ahead", "writes", "windows", "direct"];

    fn parts(&mut self) -> [&mut bool; 6] {
        let Self { shelf, opens, ahead, writes, windows, direct } = self;
        [shelf, opens, ahead, writes, windows, direct]
    }

    /// Those of a list such as `shelf,windows`, or `all`, or `none`.
    ///
    /// # Errors
    /// What is none of them.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let mut spared = Self::NONE;
        for name in text.split(',').map(str::trim) {
            let at = Self::NAMES.iter().position(|known| *known == name);
            let known = || format!("`{name}` is none of: all, none, or some of {}", Self::NAMES.join(","));
            *spared.parts()[at.ok_or_else(known)?] = true;
        }
        Ok(spared)
    }

    /// The key's value; none for the default.
    pub(crate) fn text(mut self) -> Option<String> {
        match self {
            Self::ALL => return None,
            Self::NONE => return Some("none".to_owned()),
            _ => {}
        }
        let names = self.parts().into_iter().zip(Self::NAMES).filter(|(is_on, _)| **is_on);
        Some(names.map(|(_, name)| name).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written() {
        for text in ["none", "shelf", "shelf,opens", "ahead,writes,windows"] {
            assert_eq!(Spared::parse(text).unwrap().text().as_deref(), Some(text));
        }
        assert_eq!(Spared::parse("shelf, windows").unwrap().text().as_deref(), Some("shelf,windows"));
        assert_eq!(Spared::parse("all").unwrap().text(), None);
        let said = Spared::parse("shelf,shelves").unwrap_err();
        assert!(said.contains("`shelves`") && said.contains("shelf,opens,ahead,writes,windows"), "{said}");
    }
}
