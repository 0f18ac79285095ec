//! A server's connection to its client, on which both may ask: the client's commands, and the device's copies of memory
//! that the client cannot share (`VFIO_USER_DMA_READ`, `VFIO_USER_DMA_WRITE`).

use crate::error::ProtocolError;
use crate::message::{Command, DATA_BYTES_MAX, Header, Message};
use crate::payload::{DmaAccess, take};
use crate::socket::{Connection, Deadline};
use nvmed_dma::{DeviceAddress, Distant, DmaFault};
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Mutex, MutexGuard};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// How long a client may leave what we send unread, or unanswered.
const TIMEOUT_MS: u32 = 5_000;
/// Commands of the client that may arrive while the device waits for its memory; it posts some doorbells for each of
/// its processors.
const COMMANDS_MAX: usize = 1024;
/// Bytes of them together.
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// The connection. The thread that answers the client's commands is also the one in which the device works.
#[derive(Debug)]
pub(crate) struct Link {
    /// To wait by.
    socket: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    /// Commands that came while a reply was waited for, in their order.
    commands: VecDeque<Message>,
    /// Bytes of one access that the client takes.
    data_bytes_max: usize,
    id: u16,
    /// Memory was copied since somebody last asked.
    copied: bool,
    /// Why the connection is over, found while the device worked.
    failed: Option<ProtocolError>,
}

impl Link {
    /// # Errors
    /// The host has no descriptor left.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let socket = rustix::io::fcntl_dupfd_cloexec(&fd, 0)?;
        let state = State {
            connection: Connection::new(fd),
            commands: VecDeque::new(),
            data_bytes_max: DATA_BYTES_MAX,
            id: 0,
            copied: false,
            failed: None,
        };
        Ok(Self { socket, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it has ended the server.
        self.state.lock()
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The client takes so many bytes in one access.
    pub fn limit(&self, data_bytes_max: u32) {
        self.state().data_bytes_max = DATA_BYTES_MAX.min(data_bytes_max as usize).max(1);
    }

    /// Whether a command waits that no poll of the socket tells of.
    pub(crate) fn has_command(&self) -> bool {
        let state = self.state();
        !state.commands.is_empty() || state.failed.is_some()
    }

    /// Whether memory was copied since the last call.
    pub(crate) fn take_copied(&self) -> bool {
        core::mem::take(&mut self.state().copied)
    }

    /// The next command, if one is there. Replies that nobody waits for answer nothing.
    ///
    /// # Errors
    /// The connection is over; with the header of the message that is due, if it came.
    pub fn try_receive(&self) -> Result<Option<Message>, (ProtocolError, Option<Header>)> {
        let mut state = self.state();
        if let Some(error) = state.failed.take() {
            return Err((error, None));
        }
        if let Some(command) = state.commands.pop_front() {
            return Ok(Some(command));
        }
        loop {
            match state.connection.try_receive() {
                Ok(Some(message)) if !message.header.is_command() => {}
                Ok(message) => return Ok(message),
                Err(error) => return Err((error, state.connection.due())),
            }
        }
    }

    /// Answers a command.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn reply(&self, header: Header, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ProtocolError> {
        self.state().connection.send(&header, &[payload], fds, Deadline::after(TIMEOUT_MS))
    }

    /// Copies by pieces that the client takes; `step` moves one, from an offset on.
    fn copy(
        &self,
        address: DeviceAddress,
        len: usize,
        step: impl Fn(&mut State, DmaAccess, usize) -> Result<(), ProtocolError>,
    ) -> Result<(), DmaFault> {
        let mut state = self.state();
        let fault = DmaFault { address, len };
        if state.failed.is_some() {
            return Err(fault);
        }
        state.copied = true;
        let piece = state.data_bytes_max;
        for done in (0..len).step_by(piece) {
            let access = DmaAccess { address: address.0 + done as u64, count: piece.min(len - done) as u64 };
            match step(&mut state, access, done) {
                Ok(()) => {}
                // The client has nothing there, and goes on.
                Err(ProtocolError::Refused { .. }) => return Err(fault),
                Err(error) => {
                    state.failed = Some(error);
                    return Err(fault);
                }
            }
        }
        Ok(())
    }
}

impl State {
    /// Asks the client and waits for its reply; what it asks meanwhile is kept.
    fn ask(&mut self, command: Command, payload: &[&[u8]]) -> Result<Vec<u8>, ProtocolError> {
        let deadline = Deadline::after(TIMEOUT_MS);
        self.id = self.id.wrapping_add(1);
        let bytes = payload.iter().map(|part| part.len()).sum();
        let asked = Header::command(self.id, command, bytes);
        self.connection.send(&asked, payload, &[], deadline)?;
        loop {
            let message = self.connection.receive(deadline)?;
            let got = message.header;
            if got.is_command() {
                self.keep(message)?;
            } else if (got.id, got.command) != (asked.id, asked.command) {
                let (command, id) = (asked.command, asked.id);
                return Err(ProtocolError::Unexpected { command, id, got: got.command, got_id: got.id });
            } else if got.flags & Header::ERROR != 0 {
                return Err(ProtocolError::Refused { command: got.command, errno: got.errno });
            } else {
                return Ok(message.payload);
            }
        }
    }

    fn keep(&mut self, command: Message) -> Result<(), ProtocolError> {
        let kept: usize = self.commands.iter().map(|kept| kept.payload.len()).sum();
        if self.commands.len() >= COMMANDS_MAX || kept + command.payload.len() > COMMAND_BYTES_MAX {
            let why = "too many at once for a server that waits for memory";
            return Err(ProtocolError::Value { what: "commands", value: self.commands.len() as u64, why });
        }
        self.commands.push_back(command);
        Ok(())
    }
}

/// The data behind the answer to a copy: as many bytes as it says, and for what was asked.
fn answered<'a>(reply: &'a [u8], asked: &DmaAccess, data: usize) -> Result<&'a [u8], ProtocolError> {
    let (access, rest) = take::<DmaAccess>(reply, "a copy of memory")?;
    if access != *asked || rest.len() != data {
        let why = "the answer is not what was asked";
        return Err(ProtocolError::Value { what: "copy of memory", value: access.address, why });
    }
    Ok(rest)
}

impl Distant for Link {
    fn fetch(&self, address: DeviceAddress, to: &Mapping, offset: usize, len: usize) -> Result<(), DmaFault> {
        self.copy(address, len, |state, access, done| {
            let reply = state.ask(Command::DmaRead, &[access.as_bytes()])?;
            to.write(offset + done, answered(&reply, &access, access.count as usize)?);
            Ok(())
        })
    }

    fn send(
        &self,
        address: DeviceAddress,
        from: &Mapping,
        offset: usize,
        len: usize,
    ) -> Result<(), DmaFault> {
        self.copy(address, len, |state, access, done| {
            let mut data = vec![0; access.count as usize];
            from.read(offset + done, &mut data);
            let reply = state.ask(Command::DmaWrite, &[access.as_bytes(), &data])?;
            answered(&reply, &access, 0).map(drop)
        })
    }
}
