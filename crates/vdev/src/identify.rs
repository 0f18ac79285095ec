//! Identify (Base 2.0, 5.17; NVM 1.0, 4.1.5).

use crate::admin::EVENT_REQUESTS_MAX;
use crate::controller::Controller;
use crate::counters::ERROR_ENTRIES;
use crate::io_command::NSID;
use crate::pci;
use crate::round::ABORTS_MAX;
use nvmed_nvme::{Cns, IdentifyController, IdentifyNamespace, LbaFormat, Status, SubmissionEntry, register};
use nvmed_units::Halves;
use zerocopy::{FromZeros, IntoBytes};

/// Firmware revision.
pub(crate) const FIRMWARE: [u8; 8] = *b"0.1     ";
/// Bytes of every Identify data structure.
pub(crate) const IDENTIFY_BYTES: usize = 4096;
/// Namespace identifiers from here on name no namespace: all, and reserved.
const NSID_RESERVED: u32 = 0xffff_fffe;

impl Controller {
    /// The structure that an Identify command asks for.
    pub(crate) fn identify(&self, entry: &SubmissionEntry) -> Result<Vec<u8>, Status> {
        let cns = Cns(entry.cdw10.low().low());
        let csi = entry.cdw11 >> 24;
        let unknown = Status::INVALID_FIELD.do_not_retry();
        match cns {
            // What all namespaces have in common is told by controllers with namespace management (NVM 1.0, 4.1.5.1).
            Cns::NAMESPACE => namespace(entry.nsid).map(|()| self.identify_namespace()),
            Cns::CONTROLLER => Ok(self.identify_controller().as_bytes().to_vec()),
            Cns::ACTIVE_LIST if entry.nsid >= NSID_RESERVED => Err(Status::INVALID_NAMESPACE.do_not_retry()),
            Cns::ACTIVE_LIST => Ok(active_list(entry.nsid)),
            Cns::DESCRIPTORS => namespace(entry.nsid).map(|()| self.descriptors()),
            // The NVM command set's own structures: no limits beyond the base ones.
            Cns::CSI_NAMESPACE if csi == 0 => namespace(entry.nsid).map(|()| vec![0; IDENTIFY_BYTES]),
            Cns::CSI_CONTROLLER if csi == 0 => Ok(vec![0; IDENTIFY_BYTES]),
            Cns::COMMAND_SETS => {
                let mut bytes = vec![0; IDENTIFY_BYTES];
                bytes[0] = 1;
                Ok(bytes)
            }
            _ => Err(unknown),
        }
    }

    fn identify_controller(&self) -> IdentifyController {
        let mut data = IdentifyController::new_zeroed();
        (data.vid, data.ssvid) = (pci::VENDOR, pci::VENDOR);
        pad(&mut data.sn, &self.serial);
        pad(&mut data.mn, &self.config.model);
        data.fr = FIRMWARE;
        data.mdts = self.config.mdts;
        data.cntlid = self.identity.controller();
        data.ver = register::VERSION_1_4;
        data.cntrltype = 1;
        // Namespace attribute notices.
        data.oaes = 1 << 8;
        // Directives.
        data.oacs = 1 << 5;
        data.acl = ABORTS_MAX as u8 - 1;
        data.aerl = EVENT_REQUESTS_MAX as u8 - 1;
        data.frmw = 0b11;
        // Effects log, and extended Get Log Page data: NUMDU and LPO count.
        data.lpa = 0b110;
        data.elpe = ERROR_ENTRIES as u8 - 1;
        if let Some(host_memory) = &self.config.host_memory {
            (data.hmpre, data.hmmin) = (host_memory.pages(), host_memory.pages_min());
            (data.hmminds, data.hmmaxd) = (1, host_memory.entries_max);
        }
        let bytes = self.media.bytes();
        let total = self.config.array().map_or(bytes, |array| array.capacity_bytes);
        (data.tnvmcap[0], data.unvmcap[0]) = (total, total.saturating_sub(bytes));
        data.sqes = 0x66;
        data.cqes = 0x44;
        data.nn = 1;
        data.oncs = IdentifyController::ONCS_COMPARE
            | IdentifyController::ONCS_DSM
            | IdentifyController::ONCS_WRITE_ZEROES
            | IdentifyController::ONCS_SAVE_AND_SELECT;
        data.vwc = u8::from(self.media.has_write_cache());
        let name = format!("nqn.2026-11.io.nvmed:{}", self.serial);
        let len = name.len().min(data.subnqn.len() - 1);
        data.subnqn[..len].copy_from_slice(&name.as_bytes()[..len]);
        if let Some(drive) = self.drive_identity() {
            data.vendor.copy_from_slice(drive.as_bytes());
        }
        data
    }

    fn identify_namespace(&self) -> Vec<u8> {
        let mut data = IdentifyNamespace::new_zeroed();
        data.nlbaf = 1;
        data.lbaf[0] = LbaFormat { ms: 0, lbads: 9, rp: 0 };
        data.lbaf[1] = LbaFormat { ms: 0, lbads: 12, rp: 0 };
        data.flbas = u8::from(self.config.lba_bytes == 4096);
        let blocks = self.lba_count();
        (data.nsze, data.ncap, data.nuse) = (blocks, blocks, self.used_blocks().min(blocks));
        data.nvmcap[0] = self.media.bytes();
        if let Some(array) = self.config.array() {
            self.tell_best_sizes(array, &mut data);
        }
        // Deallocated blocks read as zeroes, and Write Zeroes may deallocate.
        data.dlfeat = 0b1001;
        data.eui64 = self.identity.eui64(&self.serial);
        data.as_bytes().to_vec()
    }

    /// Namespace identification descriptors: EUI-64 (type 1) and command set (type 4).
    fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![1, 8, 0, 0];
        bytes.extend_from_slice(&self.identity.eui64(&self.serial));
        bytes.extend_from_slice(&[4, 1, 0, 0, 0]);
        bytes.resize(IDENTIFY_BYTES, 0);
        bytes
    }
}

/// Whether `nsid` is the namespace that exists.
fn namespace(nsid: u32) -> Result<(), Status> {
    if nsid == NSID { Ok(()) } else { Err(Status::INVALID_NAMESPACE.do_not_retry()) }
}

/// Active namespaces with identifiers above `after`.
fn active_list(after: u32) -> Vec<u8> {
    let mut bytes = vec![0; IDENTIFY_BYTES];
    if after < NSID {
        bytes[..4].copy_from_slice(&NSID.to_le_bytes());
    }
    bytes
}

/// A text as ASCII, padded with spaces or cut (Base 2.0, 1.4.2: ASCII strings).
fn pad(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (place, letter) in field.iter_mut().zip(text.chars()) {
        *place = if letter == ' ' || letter.is_ascii_graphic() { letter as u8 } else { b'?' };
    }
}
