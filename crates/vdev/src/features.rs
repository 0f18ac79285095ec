//! Set Features and Get Features (Base 2.0, 5.27).

use crate::controller::Controller;
use nvmed_dma::View;
use nvmed_nvme::{AsyncEvent, FeatureId, Status, SubmissionEntry};
use nvmed_units::Halves;

/// Feature identifiers run from 1 to here.
const FEATURES: usize = 14;
/// Temperature of a device without one: 300 K.
pub(crate) const TEMPERATURE_K: u16 = 300;
/// Over-temperature threshold until the host sets one, kelvin.
const TEMPERATURE_MAX_K: u32 = 343;
/// Temperature Threshold: sensor select; the composite temperature, and all sensors.
const SENSORS: u32 = 0xf;
/// Error Recovery: deallocated blocks give errors, which this namespace does not offer.
const DULBE: u32 = 1 << 16;
/// Interrupt Vector Configuration: coalescing disabled.
const COALESCING_DISABLED: u32 = 1 << 16;

/// Get Features: which value (Base 2.0, figure 190).
const SELECT_CURRENT: u32 = 0;
const SELECT_DEFAULT: u32 = 1;
const SELECT_SAVED: u32 = 2;
const SELECT_CAPABILITIES: u32 = 3;
/// Supported Capabilities of every feature: changeable; not saveable, and not of a namespace.
const CHANGEABLE: u32 = 1 << 2;

/// Current values, by identifier; and those that have an index of their own.
#[derive(Debug)]
pub(crate) struct Features {
    values: [u32; FEATURES],
    /// Under-temperature threshold, kelvin; the over-temperature threshold is the value of the feature.
    under_k: u32,
    /// A bit an interrupt vector: coalescing is disabled.
    uncoalesced: [u64; 4],
}

impl Default for Features {
    fn default() -> Self {
        let mut values = [0; FEATURES];
        values[FeatureId::VolatileWriteCache as usize] = 1;
        values[FeatureId::TemperatureThreshold as usize] = TEMPERATURE_MAX_K;
        values[FeatureId::AsyncEventConfiguration as usize] = 0xff;
        Self { values, under_k: 0, uncoalesced: [0; 4] }
    }
}

impl Features {
    /// The value of a feature; `cdw11` is the index of those that have one.
    fn get(&self, id: FeatureId, cdw11: u32) -> u32 {
        let vector = cdw11 & 0xffff;
        match id {
            FeatureId::TemperatureThreshold if cdw11 >> 20 & 3 == 1 => self.under_k,
            FeatureId::InterruptVectorConfiguration => {
                let word = self.uncoalesced.get(vector as usize / 64).copied().unwrap_or(0);
                if word >> (vector % 64) & 1 != 0 { vector | COALESCING_DISABLED } else { vector }
            }
            _ => self.values[id as usize],
        }
    }

    fn set(&mut self, id: FeatureId, value: u32) {
        match id {
            FeatureId::TemperatureThreshold if value >> 20 & 3 == 1 => self.under_k = value & 0xffff,
            FeatureId::TemperatureThreshold => self.values[id as usize] = value & 0xffff,
            FeatureId::InterruptVectorConfiguration => {
                let vector = (value & 0xffff) as usize;
                if let Some(word) = self.uncoalesced.get_mut(vector / 64) {
                    let bit = 1 << (vector % 64);
                    *word = if value & COALESCING_DISABLED != 0 { *word | bit } else { *word & !bit };
                }
            }
            _ => self.values[id as usize] = value,
        }
    }

    /// Whether the temperature is outside its thresholds: bit 1 of SMART's critical warning.
    pub(crate) fn temperature_warning(&self) -> bool {
        let over = self.values[FeatureId::TemperatureThreshold as usize];
        u32::from(TEMPERATURE_K) >= over || u32::from(TEMPERATURE_K) <= self.under_k
    }

    /// The Arbitration feature.
    pub fn arbitration(&self) -> u32 {
        self.values[FeatureId::Arbitration as usize]
    }

    /// Whether the host wants namespace attribute notices.
    pub(crate) fn namespace_event(&self) -> bool {
        self.values[FeatureId::AsyncEventConfiguration as usize] & 1 << 8 != 0
    }

    /// Whether the host wants an event for that warning.
    fn temperature_event(&self) -> bool {
        self.values[FeatureId::AsyncEventConfiguration as usize] & 1 << 1 != 0
    }
}

impl Controller {
    /// The feature that a command names, if there is one; the write cache only where the medium has one, and the host
    /// memory buffer only where the drive wants one.
    fn feature(&self, entry: &SubmissionEntry) -> Result<FeatureId, Status> {
        FeatureId::from_code(entry.cdw10.low().low())
            .filter(|&id| id != FeatureId::VolatileWriteCache || self.media.has_write_cache())
            .filter(|&id| id != FeatureId::HmbIo || self.config.hmb_io_slots > 0)
            .filter(|&id| id != FeatureId::HostMemoryBuffer || self.config.host_memory.is_some())
            .ok_or(Status::INVALID_FIELD.do_not_retry())
    }

    pub(crate) fn set_feature(&self, view: &View, entry: &SubmissionEntry) -> Result<u32, Status> {
        let id = self.feature(entry)?;
        // ONCS bit 4 says that the Save field is looked at, and Supported Capabilities that no feature is saveable.
        if entry.cdw10 >> 31 != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.do_not_retry());
        }
        if entry.nsid != 0 && entry.nsid != u32::MAX {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.do_not_retry());
        }
        let value = entry.cdw11;
        let valid = match id {
            FeatureId::NumberOfQueues => return self.number_of_queues(value),
            FeatureId::HostMemoryBuffer => return self.set_host_memory(view, entry),
            FeatureId::HmbIo => return self.set_hmb_io(entry),
            FeatureId::PowerManagement => value & 0x1f == 0,
            FeatureId::ErrorRecovery => value & DULBE == 0,
            FeatureId::InterruptVectorConfiguration => value & 0xffff <= u32::from(self.config.queues_max),
            FeatureId::TemperatureThreshold => {
                matches!(value >> 16 & SENSORS, 0 | SENSORS) && value >> 20 & 3 <= 1
            }
            _ => true,
        };
        if !valid {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        if id == FeatureId::VolatileWriteCache {
            self.set_write_cache(value & 1 != 0)?;
        }
        let mut admin = self.admin.lock();
        admin.features.set(id, value);
        if id == FeatureId::TemperatureThreshold
            && admin.features.temperature_warning()
            && admin.features.temperature_event()
        {
            admin.record(AsyncEvent::TEMPERATURE_THRESHOLD);
        }
        Ok(0)
    }

    pub(crate) fn get_feature(&self, view: &View, entry: &SubmissionEntry) -> Result<u32, Status> {
        let id = self.feature(entry)?;
        let granted = u32::from(self.config.queues_max) - 1;
        match (entry.cdw10 >> 8 & 7, id) {
            (SELECT_CAPABILITIES, _) => Ok(CHANGEABLE),
            (SELECT_CURRENT..=SELECT_SAVED, FeatureId::NumberOfQueues) => Ok(granted | granted << 16),
            (select @ SELECT_CURRENT..=SELECT_SAVED, FeatureId::HostMemoryBuffer) => {
                let (value, attributes) = self.host_memory_feature(select == SELECT_CURRENT);
                self.give(view, entry, &attributes).map(|()| value)
            }
            (SELECT_CURRENT, FeatureId::HmbIo) => {
                let granted = self.drive.as_ref().map(|drive| drive.state.lock().hmb_io_granted());
                Ok(granted.unwrap_or_default().dword())
            }
            (SELECT_DEFAULT | SELECT_SAVED, FeatureId::HmbIo) => Ok(0),
            (SELECT_CURRENT, _) => Ok(self.admin.lock().features.get(id, entry.cdw11)),
            // Nothing is saveable: the saved value is the default.
            (SELECT_DEFAULT | SELECT_SAVED, _) => Ok(Features::default().get(id, entry.cdw11)),
            _ => Err(Status::INVALID_FIELD.do_not_retry()),
        }
    }

    /// Number of Queues: both halves 0's based; only before I/O queues exist.
    fn number_of_queues(&self, asked: u32) -> Result<u32, Status> {
        let (sqs, cqs) = (asked & 0xffff, asked >> 16);
        if sqs == 0xffff || cqs == 0xffff {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        if self.groups[1..].iter().any(|group| group.queues.lock().cq.is_some()) {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        // All queues there are, whatever was asked for: asking reserves nothing (as other controllers do).
        let granted = u32::from(self.config.queues_max) - 1;
        Ok(granted | granted << 16)
    }

    /// What is in a cache that is switched off reaches the medium first.
    fn set_write_cache(&self, enabled: bool) -> Result<(), Status> {
        self.enable_write_cache(enabled);
        if enabled { Ok(()) } else { self.media.flush() }
    }
}
