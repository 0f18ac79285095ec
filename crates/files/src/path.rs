//! Paths from the root of a mounted file system, wherever the process is.

use nvmed_fs::FsError;

/// Answers of `Away` followed: as many as symbolic links.
const AWAY_MAX: u32 = nvmed_fs::SYMLINKS_MAX;

/// A path as the file system takes it from its root: no leading slashes, no `..` above the root.
pub(crate) fn within(path: &[u8]) -> &[u8] {
    let mut rest = path;
    loop {
        let shorter = match rest {
            [b'/', more @ ..] => more,
            b".." => b"",
            [b'.', b'.', b'/', more @ ..] => more,
            _ => break,
        };
        rest = shorter;
    }
    if rest.is_empty() { b"." } else { rest }
}

/// Calls `call` with a path below the root, and with where it leads on if that is an absolute symbolic link: this file
/// system's root is the root.
pub(crate) fn follow<T>(
    path: &[u8],
    mut call: impl FnMut(&[u8]) -> Result<T, FsError>,
) -> Result<T, FsError> {
    if path.is_empty() {
        return Err(FsError::NotFound);
    }
    let mut result = call(within(path));
    for _ in 0..AWAY_MAX {
        match result {
            Err(FsError::Away(further)) => result = call(within(&further)),
            other => return other,
        }
    }
    Err(FsError::Loop)
}

/// A path's directory, and its last name with the slashes behind it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    match path[..end].iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (b".", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_root() {
        for (path, want) in
            [("/a/b", "a/b"), ("a", "a"), ("//", "."), ("../../a", "a"), ("..", "."), ("..a", "..a")]
        {
            assert_eq!(within(path.as_bytes()), want.as_bytes(), "{path}");
        }
    }

    #[test]
    fn the_last_name_keeps_its_slashes() {
        for (path, directory, name) in
            [("/a/b", "/a/", "b"), ("b//", ".", "b//"), ("a/b/", "a/", "b/"), ("/", ".", "/")]
        {
            assert_eq!(split(path.as_bytes()), (directory.as_bytes(), name.as_bytes()), "{path}");
        }
    }

    #[test]
    fn an_absolute_link_starts_over_and_a_circle_ends() {
        let found = follow(b"/link", |path| match path {
            b"link" => Err(FsError::Away(b"/target".as_slice().into())),
            other => Ok(other.to_vec()),
        });
        assert_eq!(found.unwrap(), b"target");
        assert!(matches!(
            follow::<()>(b"l", |_| Err(FsError::Away(b"/l".as_slice().into()))),
            Err(FsError::Loop)
        ));
        assert!(matches!(follow(b"", |_| Ok(())), Err(FsError::NotFound)));
    }
}
