//! A board and a shelf with one name and its card, and both as a client sees them.

use nvmed_fs::versions::Version;
use nvmed_fs::{Follow, Stat};
use nvmed_wire::{Board, BoardView, CardBytes, Facts, Found, Shelf, ShelfPages, ShelfView};
use std::sync::Arc;

pub const AT: u64 = 1;
pub const INO: u64 = 77;
pub const NAME: &[u8] = b"f";
/// The number under which changes of the name are counted.
pub const NAME_NUMBER: u64 = 5;

/// As many pages as the shelf has room for.
pub struct Endless;

impl ShelfPages for Endless {
    fn take(&mut self) -> bool {
        true
    }
}

/// The server's side.
pub struct Server {
    pub board: Arc<Board>,
    pub shelf: Shelf,
}

/// A client's side.
pub struct Client {
    pub board: BoardView,
    pub shelf: ShelfView,
}

pub fn pair(pages: usize) -> (Server, Client) {
    let board = Arc::new(Board::new().unwrap());
    let shelf = Shelf::new(&board, pages, 9, (false, true)).unwrap();
    let view = BoardView::open(board.readers()).unwrap();
    let client = Client { board: view, shelf: ShelfView::open(shelf.readers()).unwrap() };
    (Server { board, shelf }, client)
}

impl Server {
    pub fn version(&self, number: u64) -> Option<Version> {
        self.board.versions().settled(number)
    }

    /// The card of the inode, whose size is told to be this.
    pub fn put_card(&mut self, ino: u64, size: u64, version: Version, bytes: Option<CardBytes<'_>>) {
        let stat = stat(ino, size);
        let facts = Facts { stat: &stat, version, rights: 7, opens: true, plain: true };
        assert!(self.shelf.put_card(&facts, bytes, &mut Endless), "there is a place");
    }

    pub fn put_name(&mut self, ino: Option<u64>, version: Version) {
        let _ = self.shelf.put_name((AT, NAME), Follow::Yes, ino, &[version.get()]);
    }
}

fn stat(ino: u64, size: u64) -> Stat {
    Stat {
        dev: 9,
        ino,
        mode: 0o100_644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks_512: 8,
        block_bytes: 4096,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        btime_ns: 0,
    }
}

impl Client {
    pub fn find(&self) -> Option<Found> {
        self.shelf.find(AT, NAME, Follow::Yes, &self.board)
    }

    pub fn stands(&self, found: &Found) -> bool {
        self.shelf.stands(found, &self.board)
    }
}
