//! Writes that a drive works on as one command: eMMC's driver packs those that wait (JESD84-B451, packed commands).

/// A pack of writes, or a command by itself.
#[derive(Clone, Debug, Default)]
struct Pack {
    /// Its commands in the order of arrival, and whether each was refused.
    members: Vec<(u32, bool)>,
    /// Members that have not ended.
    left: u32,
}

/// The last pack, as long as writes that arrive at this time can join it.
#[derive(Clone, Copy, Debug)]
struct Open {
    pack: u32,
    time: u64,
}

/// What a drive works on.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    /// Most writes of a pack, and most packs at once.
    writes_max: usize,
    packs_max: u32,
    working: u32,
    /// A command that was taken to see whether it can be packed, and whether it is one that can. It waits for an end.
    waiting: Option<(u32, bool)>,
    open: Option<Open>,
    packs: Vec<Pack>,
    free: Vec<u32>,
    /// The pack of each ticket.
    pack_of: Box<[u32]>,
}

impl Packing {
    /// Packs of up to `writes_max` writes, `packs_max` at once.
    pub fn new(writes_max: u32, packs_max: u32, tickets: usize) -> Self {
        Self {
            writes_max: writes_max as usize,
            packs_max,
            working: 0,
            waiting: None,
            open: None,
            packs: vec![Pack::default(); packs_max as usize],
            free: (0..packs_max).collect(),
            pack_of: vec![0; tickets].into(),
        }
    }

    /// Whether there is room for one more command.
    pub fn takes(&self) -> bool {
        self.waiting.is_none()
    }

    /// A command arrives; whether it begins now.
    pub fn arrive(&mut self, now: u64, ticket: u32, can_be_packed: bool) -> bool {
        let open = self.open.filter(|open| can_be_packed && open.time == now);
        if let Some(Open { pack, .. }) = open.filter(|open| self.has_room(open.pack)) {
            self.join(pack, ticket);
            return true;
        }
        self.open = None;
        if self.working < self.packs_max {
            self.begin(now, ticket, can_be_packed);
            return true;
        }
        self.waiting = Some((ticket, can_be_packed));
        false
    }

    fn has_room(&self, pack: u32) -> bool {
        self.packs[pack as usize].members.len() < self.writes_max
    }

    fn join(&mut self, pack: u32, ticket: u32) {
        self.pack_of[ticket as usize] = pack;
        let pack = &mut self.packs[pack as usize];
        pack.members.push((ticket, false));
        pack.left += 1;
    }

    fn begin(&mut self, now: u64, ticket: u32, can_be_packed: bool) {
        let Some(pack) = self.free.pop() else { return };
        self.working += 1;
        self.packs[pack as usize].members.clear();
        self.join(pack, ticket);
        self.open = can_be_packed.then_some(Open { pack, time: now });
    }

    /// A command has ended. With the last one of its pack, all of it are done, in the order of arrival.
    pub fn end(&mut self, ticket: u32, refused: bool) -> Option<&[(u32, bool)]> {
        let number = self.pack_of[ticket as usize];
        let pack = &mut self.packs[number as usize];
        let member = pack.members.iter_mut().find(|(member, _)| *member == ticket);
        member.into_iter().for_each(|member| member.1 = refused);
        pack.left -= 1;
        if pack.left > 0 {
            return None;
        }
        self.working -= 1;
        self.free.push(number);
        self.open = self.open.filter(|open| open.pack != number);
        Some(&self.packs[number as usize].members)
    }

    /// Lets the command begin that has waited for an end; which one.
    pub fn next(&mut self, now: u64) -> Option<u32> {
        let (ticket, can_be_packed) = self.waiting.take()?;
        self.begin(now, ticket, can_be_packed);
        Some(ticket)
    }
}
