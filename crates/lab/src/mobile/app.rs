//! SQL shaped like a messenger, a social network's reader and a mail program.
//!
//! The papers' traces are not public; what is here is synthetic, and described on each [`App`]. Databases have a
//! rollback journal that is truncated at each commit, and `synchronous=FULL`: an embedded database that loses nothing.

use nvmed_dice::{Dice, mix};
use std::fmt::{self, Write};

/// Which application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum App {
    /// A message that comes (9 of 20): one row of 20 to 300 bytes and its conversation's line, in a transaction. One
    /// that is sent (5): a row; its conversation's line; its acknowledgement, each a transaction. A receipt (3): up to
    /// ten rows marked as read. A picture (3): a thumbnail of 2 to 8 KiB. Before every second one a conversation's last
    /// 30 messages are read, before every fourth the list of conversations. 5,000 messages in 60 conversations are
    /// there before.
    Messenger,
    /// A refresh (6 of 20): 10 to 25 posts of 0.6 to 2 KiB, and as many old ones removed, in a transaction. Counts (6):
    /// 5 to 10 posts changed in a transaction. A comment (3): a row of 50 to 250 bytes and its post. A setting (5): one
    /// replaced. Before each, 20 posts are read. 500 posts are there before.
    Sns,
    /// A mail that comes (8 of 20): 0.3 to 0.6 KiB of header, 2 to 24 KiB of body in a second database that is
    /// attached, the mailbox's count, in a transaction over both. One marked as read (4). The state of synchronisation
    /// (3). One to five moved (3). One deleted from both (2). Before every second one a list of 25 headers and a body
    /// are read. 1,000 mails are there before.
    Mail,
}

/// Text that a statement is made of; the seed decides it.
struct Writer {
    text: String,
    dice: Dice,
}

impl Writer {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.dice.roll(high - low + 1)
    }

    /// Old things are looked at less than new ones: the square of a dice, from the newest.
    fn recent(&mut self, newest: u64) -> u64 {
        let range = newest.max(1);
        let dice = self.dice.roll(range);
        newest - dice * dice / range
    }

    fn line(&mut self, arguments: fmt::Arguments<'_>) {
        // A String takes all.
        let _ = self.text.write_fmt(arguments);
        self.text.push('\n');
    }
}

macro_rules! sql {
    ($writer:expr, $($words:tt)*) => { $writer.line(format_args!($($words)*)) };
}

impl App {
    /// All of them, as the paper's figure has them.
    pub const ALL: [Self; 3] = [Self::Messenger, Self::Sns, Self::Mail];

    /// Its name in the figure.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Messenger => "messenger",
            Self::Sns => "SNS",
            Self::Mail => "mail",
        }
    }

    /// Its own transactions: as many as make write requests of the order of the paper's table II on ext4.
    #[must_use]
    pub fn transactions(self) -> u64 {
        match self {
            Self::Messenger => 2_000,
            Self::Sns => 1_500,
            Self::Mail => 6_000,
        }
    }

    /// The statements before everything else: where the second database is, and how they commit.
    fn opening(self, dir: &str) -> String {
        match self {
            Self::Mail => format!(
                "ATTACH '{dir}/body.db' AS b;\nPRAGMA main.journal_mode=TRUNCATE;\nPRAGMA b.journal_mode=TRUNCATE;\n\
                 PRAGMA main.synchronous=FULL;\nPRAGMA b.synchronous=FULL;\n"
            ),
            _ => "PRAGMA journal_mode=TRUNCATE;\nPRAGMA synchronous=FULL;\n".to_owned(),
        }
    }

    /// SQL that makes the database in `dir` and what is in it before the measurement.
    #[must_use]
    pub fn before(self, dir: &str) -> String {
        let rows = |count: u64, row: &str| {
            format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{count}) {row}\n")
        };
        let tables = match self {
            Self::Messenger => {
                "CREATE TABLE chat(id INTEGER PRIMARY KEY, last TEXT, unread INT, at INT);\n\
                 CREATE TABLE message(id INTEGER PRIMARY KEY, chat INT, at INT, state INT, body BLOB);\n\
                 CREATE TABLE thumb(message INTEGER PRIMARY KEY, data BLOB);\n\
                 CREATE INDEX message_chat ON message(chat, id);\n\
                 BEGIN;\n"
                    .to_owned()
                    + &rows(60, "INSERT INTO chat SELECT i, 'hello', 0, i FROM n;")
                    + &rows(
                        5000,
                        "INSERT INTO message SELECT i, i*i%60+1, i, 2, randomblob(20+i%280) FROM n;",
                    )
            }
            Self::Sns => {
                "CREATE TABLE post(id INTEGER PRIMARY KEY, at INT, likes INT, comments INT, body BLOB);\n\
                 CREATE TABLE comment(id INTEGER PRIMARY KEY, post INT, body BLOB);\n\
                 CREATE TABLE setting(name TEXT PRIMARY KEY, value BLOB);\n\
                 CREATE INDEX post_at ON post(at);\nCREATE INDEX comment_post ON comment(post);\n\
                 BEGIN;\n"
                    .to_owned()
                    + &rows(500, "INSERT INTO post SELECT i, i, 0, 0, randomblob(600+i*7%1400) FROM n;")
            }
            Self::Mail => {
                "CREATE TABLE mailbox(id INTEGER PRIMARY KEY, unread INT, total INT, sync BLOB);\n\
                 CREATE TABLE mail(id INTEGER PRIMARY KEY, mailbox INT, at INT, seen INT, header BLOB);\n\
                 CREATE INDEX mail_box ON mail(mailbox, at);\n\
                 CREATE TABLE b.body(mail INTEGER PRIMARY KEY, data BLOB);\n\
                 BEGIN;\n"
                    .to_owned()
                    + &rows(8, "INSERT INTO mailbox SELECT i, 0, 0, randomblob(32) FROM n;")
                    + &rows(1000, "INSERT INTO mail SELECT i, i%8+1, i, 1, randomblob(300+i%300) FROM n;")
                    + &rows(1000, "INSERT INTO b.body SELECT i, randomblob(2000+i*17%22000) FROM n;")
            }
        };
        self.opening(dir) + &tables + "COMMIT;\n"
    }

    /// SQL of `count` of its transactions, with what is read between them.
    #[must_use]
    pub(crate) fn transactions_sql(self, dir: &str, count: u64, seed: u64) -> String {
        // What is read is formatted and thrown away.
        let mut writer = Writer {
            text: ".output /dev/null\n".to_owned() + &self.opening(dir),
            dice: Dice::new(mix(seed ^ self as u64)),
        };
        for number in 1..=count {
            match self {
                Self::Messenger => messenger(&mut writer, 5000 + number),
                Self::Sns => sns(&mut writer, number),
                Self::Mail => mail(&mut writer, 1000 + number),
            }
        }
        writer.text
    }

    /// SQL whose answer is the same wherever the same was done: the state of the database, without its random bytes.
    #[must_use]
    pub fn check(self, dir: &str) -> String {
        let sums = match self {
            Self::Messenger => {
                "SELECT count(*), sum(length(body)), sum(state) FROM message; SELECT sum(unread), sum(at) FROM chat;\
                 SELECT count(*), sum(length(data)) FROM thumb;"
            }
            Self::Sns => {
                "SELECT count(*), sum(at), sum(likes), sum(comments), sum(length(body)) FROM post;\
                 SELECT count(*), sum(length(body)) FROM comment; SELECT count(*) FROM setting;"
            }
            Self::Mail => {
                "SELECT count(*), sum(mailbox), sum(seen), sum(length(header)) FROM mail; SELECT sum(unread), \
                 sum(total) FROM mailbox;SELECT count(*), sum(length(data)) FROM b.body; PRAGMA b.integrity_check;"
            }
        };
        self.opening(dir) + "PRAGMA integrity_check;\n" + sums + "\n"
    }
}

fn messenger(sql: &mut Writer, id: u64) {
    let chat = 61 - sql.recent(60).max(1);
    if sql.dice.roll(2) == 0 {
        sql!(sql, "SELECT * FROM message WHERE chat={chat} ORDER BY id DESC LIMIT 30;");
    }
    if sql.dice.roll(4) == 0 {
        sql!(sql, "SELECT * FROM chat ORDER BY at DESC LIMIT 20;");
    }
    let bytes = sql.between(20, 300);
    match sql.dice.roll(20) {
        0..9 => {
            sql!(sql, "BEGIN; INSERT INTO message VALUES({id},{chat},{id},1,randomblob({bytes}));");
            sql!(sql, "UPDATE chat SET last='m{id}', unread=unread+1, at={id} WHERE id={chat}; COMMIT;");
        }
        9..14 => {
            sql!(sql, "INSERT INTO message VALUES({id},{chat},{id},0,randomblob({bytes}));");
            sql!(sql, "UPDATE chat SET last='m{id}', at={id} WHERE id={chat};");
            sql!(sql, "UPDATE message SET state=1 WHERE id={id};");
        }
        14..17 => sql!(
            sql,
            "UPDATE message SET state=2 WHERE id IN (SELECT id FROM message WHERE chat={chat} ORDER BY id DESC LIMIT \
             10);"
        ),
        _ => {
            let bytes = sql.between(2 << 10, 8 << 10);
            sql!(sql, "INSERT INTO thumb VALUES({id},randomblob({bytes}));");
        }
    }
}

fn sns(sql: &mut Writer, number: u64) {
    sql!(sql, "SELECT * FROM post ORDER BY at DESC LIMIT 20;");
    match sql.dice.roll(20) {
        0..6 => {
            let posts = sql.between(10, 25);
            sql!(sql, "BEGIN;");
            for _ in 0..posts {
                let bytes = sql.between(600, 2000);
                sql!(
                    sql,
                    "INSERT INTO post(at,likes,comments,body) VALUES({},0,0,randomblob({bytes}));",
                    500 + number
                );
            }
            sql!(
                sql,
                "DELETE FROM post WHERE id IN (SELECT id FROM post ORDER BY at LIMIT {posts}); COMMIT;"
            );
        }
        6..12 => {
            let posts = sql.between(5, 10);
            sql!(sql, "BEGIN;");
            for _ in 0..posts {
                let back = sql.dice.roll(400);
                sql!(sql, "UPDATE post SET likes=likes+1 WHERE id=(SELECT max(id) FROM post)-{back};");
            }
            sql!(sql, "COMMIT;");
        }
        12..15 => {
            let (back, bytes) = (sql.dice.roll(100), sql.between(50, 250));
            sql!(
                sql,
                "BEGIN; INSERT INTO comment(post,body) VALUES((SELECT max(id) FROM post)-{back},randomblob({bytes}));"
            );
            sql!(
                sql,
                "UPDATE post SET comments=comments+1 WHERE id=(SELECT max(id) FROM post)-{back}; COMMIT;"
            );
        }
        _ => {
            let name = sql.dice.roll(40);
            sql!(sql, "REPLACE INTO setting VALUES('setting{name}',randomblob(80));");
        }
    }
}

fn mail(sql: &mut Writer, id: u64) {
    let (mailbox, old) = (sql.dice.roll(8) + 1, sql.recent(id - 1));
    if sql.dice.roll(2) == 0 {
        sql!(sql, "SELECT * FROM mail WHERE mailbox={mailbox} ORDER BY at DESC LIMIT 25;");
        sql!(sql, "SELECT * FROM b.body WHERE mail={old};");
    }
    match sql.dice.roll(20) {
        0..8 => {
            let (header, body) = (sql.between(300, 600), sql.between(2 << 10, 24 << 10));
            sql!(sql, "BEGIN; INSERT INTO mail VALUES({id},{mailbox},{id},0,randomblob({header}));");
            sql!(sql, "INSERT INTO b.body VALUES({id},randomblob({body}));");
            sql!(sql, "UPDATE mailbox SET unread=unread+1, total=total+1 WHERE id={mailbox}; COMMIT;");
        }
        8..12 => sql!(sql, "UPDATE mail SET seen=1 WHERE id={old};"),
        12..15 => sql!(sql, "UPDATE mailbox SET sync=randomblob(32) WHERE id={mailbox};"),
        15..18 => {
            let count = sql.between(1, 5);
            sql!(sql, "UPDATE mail SET mailbox={mailbox} WHERE id>{old}-{count} AND id<={old};");
        }
        _ => {
            sql!(sql, "BEGIN; DELETE FROM mail WHERE id={old};");
            sql!(sql, "DELETE FROM b.body WHERE mail={old}; COMMIT;");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn sqlite(dir: &std::path::Path, sql: &str) -> String {
        let script = dir.join("script.sql");
        std::fs::write(&script, sql).unwrap();
        let mut command = Command::new("sqlite3");
        command.arg("-bail").arg(dir.join("main.db")).stdin(std::fs::File::open(script).unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Two contenders that end with other databases would not have done the same; a statement that fails does nothing.
    #[test]
    fn a_seed_makes_the_same_database_twice_and_no_statement_fails() {
        if Command::new("sqlite3").arg("--version").output().is_err() {
            eprintln!("SKIPPED: sqlite3 is not here (Debian: sqlite3)");
            return;
        }
        for app in App::ALL {
            let ends = [1, 1, 2].map(|seed| {
                let name = format!("nvmed-lab-app-{}-{}-{seed}", app.name(), std::process::id());
                // Each commit is durable: memory is quicker, where there is any.
                let memory = std::path::Path::new("/dev/shm");
                let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
                let dir = base.join(name);
                std::fs::create_dir_all(&dir).unwrap();
                let text = dir.display().to_string();
                sqlite(&dir, &app.before(&text));
                sqlite(&dir, &app.transactions_sql(&text, 200, seed));
                let end = sqlite(&dir, &app.check(&text));
                std::fs::remove_dir_all(&dir).unwrap();
                end
            });
            assert_eq!(ends[0], ends[1], "{}", app.name());
            assert_ne!(ends[0], ends[2], "{}: the seed decides nothing", app.name());
            assert!(ends[0].contains("\nok\n"), "{}", ends[0]);
        }
    }
}
