//! PostgreSQL 15 and `pgbench`: a server of many processes, durable commits.

use super::{Mount, Seat, highest, quick, rounds, rows};
use crate::mounted::{KernelFs, Ours};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const SCALE: &str = "5";
const CLIENTS: &str = "4";
/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// What `pgbench` leaves blank would compress to nothing on zram: digests do not.
const FILL: &str = "UPDATE pgbench_accounts SET filler = md5(aid::text) || md5((aid+1)::text) || \
                    left(md5((aid+2)::text), 20);";

/// A running server; it is told to end when dropped.
struct Server {
    seat: Seat,
    name: String,
    socket: PathBuf,
    child: Child,
}

/// A program of PostgreSQL's, as the user that its server insists on.
fn as_postgres(seat: Option<&Seat>, program: &str) -> Result<Command, String> {
    let mut command = seat.map_or_else(|| Ok(Command::new("setpriv")), |seat| seat.command("setpriv"))?;
    command
        .args(["--reuid=postgres", "--regid=postgres", "--init-groups"])
        .arg(Path::new(PROGRAMS).join(program));
    // Its start fails in a directory that its user may not enter.
    command.current_dir("/");
    Ok(command)
}

impl Server {
    /// Makes a cluster and starts its server; `words` are more arguments of `postgres`.
    fn start(seat: Seat, name: &str, words: &[&str]) -> Result<Self, String> {
        let (home, data) = (seat.dir().join("pg"), seat.dir().join("pg/data"));
        let mut make = seat.command("sh")?;
        run(make
            .args(["-c", "mkdir \"$0\" && chown postgres: \"$0\" && chmod 755 \"$0\" \"$0\"/.."])
            .arg(&home))?;
        run(as_postgres(Some(&seat), "initdb")?.args(["-A", "trust", "-D"]).arg(&data))?;
        let socket = std::env::temp_dir().join(format!("nvmed-bench-{}-{}", std::process::id(), word(name)));
        std::fs::create_dir_all(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        run(Command::new("chown").arg("postgres:").arg(&socket))?;
        let mut command = as_postgres(Some(&seat), "postgres")?;
        command.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-k"]).arg(&socket).args(words);
        let log = std::fs::File::create(socket.join("log")).map_err(|error| error.to_string())?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let child = child.map_err(|error| format!("{command:?}: {error}"))?;
        let mut server = Self { seat, name: name.to_owned(), socket, child };
        server.wait()?;
        Ok(server)
    }

    /// Waits until it answers.
    fn wait(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let asked = run(Command::new(Path::new(PROGRAMS).join("pg_isready")).arg("-h").arg(&self.socket));
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            match (asked, ended) {
                (Ok(_), None) => return Ok(()),
                (_, None) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
                (_, ended) => {
                    let log = std::fs::read_to_string(self.socket.join("log")).unwrap_or_default();
                    return Err(format!("{}: postgres did not start ({ended:?}): {log}", self.name));
                }
            }
        }
    }

    fn client(&self, program: &str) -> Result<Command, String> {
        let mut command = as_postgres(None, program)?;
        command.arg("-h").arg(&self.socket);
        Ok(command)
    }

    fn load(&self) -> Result<(), String> {
        run(self.client("createdb")?.arg("bench"))?;
        run(self.client("pgbench")?.args(["-q", "-i", "-s", SCALE, "bench"]))?;
        run(self.client("psql")?.args([
            "-q",
            "-c",
            FILL,
            "-c",
            "VACUUM FULL ANALYZE pgbench_accounts",
            "-c",
            "CHECKPOINT",
            "bench",
        ]))?;
        Ok(())
    }

    /// Transactions a second of one round.
    fn round(&self, seconds: u32) -> Result<f64, String> {
        let mut pgbench = self.client("pgbench")?;
        let said = run(pgbench.args(["-n", "-c", CLIENTS, "-j", "2", "-T", &seconds.to_string(), "bench"]))?;
        let line = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let figure = line.and_then(|line| line.split(' ').next()?.parse().ok());
        let whole = said.contains("number of failed transactions: 0 ");
        figure.filter(|_| whole).ok_or_else(|| format!("{}: pgbench said {said:?}", self.name))
    }

    /// What was paid into the accounts and what the branches say must agree.
    fn check(&self) -> Result<(), String> {
        let sum = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)";
        let said = run(self.client("psql")?.args(["-qAt", "-c", sum, "bench"]))?;
        if said.trim() == "t" { Ok(()) } else { Err(format!("{}: the balances disagree: {said}", self.name)) }
    }
}

fn word(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // SIGINT is its fast shutdown.
        let _ = kill_process(pid, Signal::INT);
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > PATIENCE {
                eprintln!("nvmed-bench: {} of {} does not end", self.name, self.seat.dir().display());
                let _ = kill_process(pid, Signal::TERM);
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = std::fs::remove_dir_all(&self.socket);
    }
}

/// TPC-B-like transactions of four clients.
pub fn pgbench() -> Result<Vec<Row>, String> {
    if !Path::new(PROGRAMS).join("pgbench").exists() {
        return Err(format!("{PROGRAMS} is not here (Debian: postgresql-15)"));
    }
    let seconds = if quick() { 3 } else { 10 };
    let ours = Seat::Ours(Ours::new(3 << 30, 256 << 20, "huge")?, Mount::Shared);
    let name = ours.name();
    let servers = [
        Server::start(ours, &name, &[])?,
        Server::start(Seat::kernel(KernelFs::Ext4)?, "ext4 on zram", &[])?,
        Server::start(Seat::kernel(KernelFs::Xfs)?, "xfs on zram", &[])?,
        Server::start(Seat::kernel(KernelFs::Tmpfs)?, "tmpfs, fsync off", &["-c", "fsync=off"])?,
    ];
    servers.iter().try_for_each(Server::load)?;
    let mut samples = vec![Samples::default(); servers.len()];
    for _ in 0..rounds() {
        for (server, samples) in servers.iter().zip(&mut samples) {
            samples.push(server.round(seconds)?);
        }
    }
    servers.iter().try_for_each(Server::check)?;
    let all: Vec<Contender> = servers
        .iter()
        .zip(samples)
        .map(|(server, samples)| Contender { name: server.name.clone(), samples })
        .collect();
    let (Some(kernel), [ours, .., ceiling]) = (highest(&all[1..3]), &all[..]) else { return Ok(Vec::new()) };
    let conditions = format!(
        "PostgreSQL 15, pgbench, {CLIENTS} clients, scale {SCALE}, synchronous commit, data directory in the place; \
         {seconds} s a round, {} rounds; ext4 {:.0}, xfs {:.0}, tmpfs with fsync off {:.0} tps",
        rounds(),
        all[1].samples.median(),
        all[2].samples.median(),
        ceiling.samples.median()
    );
    let gain = |((ours, kernel), ceiling): ((&f64, &f64), &f64)| 100.0 * (ours - kernel) / (ceiling - kernel);
    let figures = ours.samples.figures().iter().zip(kernel.samples.figures()).zip(ceiling.samples.figures());
    let gained = Contender {
        name: "of what tmpfs with fsync off gains".to_owned(),
        samples: figures.map(gain).collect(),
    };
    let row = rows(&conditions);
    Ok(vec![
        row("programs.pgbench", "tps", ours, Some(kernel.clone()), Goal::Times(1.0)),
        row("programs.pgbench.gain", "%", &gained, None, Goal::Least(50.0)),
    ])
}
