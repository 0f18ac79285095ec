//! Set Features and Get Features (Base 2.0, 5.27).

use crate::controller::{Controller, locked};
use nvmed_nvme::{FeatureId, Status, SubmissionEntry};

/// Feature identifiers run from 1 to here.
const FEATURES: usize = 12;
/// Over-temperature threshold until the host sets one, kelvin.
const TEMPERATURE_MAX_K: u32 = 343;

/// Current values, by identifier.
#[derive(Debug)]
pub(crate) struct Features([u32; FEATURES]);

impl Default for Features {
    fn default() -> Self {
        let mut values = [0; FEATURES];
        values[FeatureId::VolatileWriteCache as usize] = 1;
        values[FeatureId::TemperatureThreshold as usize] = TEMPERATURE_MAX_K;
        values[FeatureId::AsyncEventConfiguration as usize] = 0xff;
        Self(values)
    }
}

fn feature(entry: &SubmissionEntry) -> Result<FeatureId, Status> {
    FeatureId::from_code((entry.cdw10 & 0xff) as u8).ok_or(Status::INVALID_FIELD.do_not_retry())
}

impl Controller {
    pub(crate) fn set_feature(&self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let id = feature(entry)?;
        if entry.cdw10 >> 31 != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.do_not_retry());
        }
        let value = entry.cdw11;
        match id {
            FeatureId::NumberOfQueues => return self.number_of_queues(value),
            FeatureId::VolatileWriteCache => self.set_write_cache(value)?,
            FeatureId::PowerManagement if value & 0x1f != 0 => {
                return Err(Status::INVALID_FIELD.do_not_retry());
            }
            FeatureId::InterruptVectorConfiguration if value & 0xffff > u32::from(self.config.queues_max) => {
                return Err(Status::INVALID_FIELD.do_not_retry());
            }
            _ => {}
        }
        locked(&self.admin).features.0[id as usize] = value;
        Ok(0)
    }

    pub(crate) fn get_feature(&self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let id = feature(entry)?;
        let select = entry.cdw10 >> 8 & 7;
        let granted = u32::from(self.config.queues_max) - 1;
        match (select, id) {
            // Supported capabilities: changeable, except the write cache of a device without one.
            (3, FeatureId::VolatileWriteCache) => Ok(u32::from(self.media.has_write_cache()) << 2),
            (3, _) => Ok(1 << 2),
            (_, FeatureId::NumberOfQueues) => Ok(granted | granted << 16),
            (0, _) => Ok(locked(&self.admin).features.0[id as usize]),
            (1 | 2, _) => Ok(Features::default().0[id as usize]),
            _ => Err(Status::INVALID_FIELD.do_not_retry()),
        }
    }

    /// Number of Queues: both halves 0's based; only before I/O queues exist.
    fn number_of_queues(&self, asked: u32) -> Result<u32, Status> {
        let (sqs, cqs) = (asked & 0xffff, asked >> 16);
        if sqs == 0xffff || cqs == 0xffff {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        if self.places[1..].iter().any(|place| locked(&place.group).cq.is_some()) {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        let most = u32::from(self.config.queues_max) - 1;
        Ok(sqs.min(most) | cqs.min(most) << 16)
    }

    fn set_write_cache(&self, value: u32) -> Result<(), Status> {
        if !self.media.has_write_cache() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let enabled = value & 1 != 0;
        if !enabled {
            self.media.flush()?;
        }
        self.enable_write_cache(enabled);
        Ok(())
    }
}
