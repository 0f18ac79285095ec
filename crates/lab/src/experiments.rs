//! Which experiments there are.

mod baseline;
mod hmb;
mod hmbio;
mod iiswc15;
mod mobile;
mod mongodb;
mod nvmfs;
mod policies;
mod share;
mod smallfile;
mod store;
mod zones;

use crate::experiment::Experiment;

/// All experiments, in the order in which they run. A new one is a value that implements [`Experiment`], a line
/// here, and its entry in `data/published.json`.
#[must_use]
pub fn experiments() -> &'static [&'static dyn Experiment] {
    static ALL: [&dyn Experiment; 45] = [
        &baseline::SEQUENTIAL,
        &baseline::RANDREAD_1T,
        &baseline::RANDWRITE_1T,
        &baseline::RANDREAD_4T,
        &baseline::RANDWRITE_4T,
        &share::SoftwareShare,
        &baseline::VIRTUAL_NVME,
        &policies::Policies,
        &smallfile::Time,
        &smallfile::Bytes,
        &store::Get,
        &store::Put,
        &store::Tail,
        &zones::Zones,
        &mobile::Time,
        &mobile::Requests,
        &mongodb::MongoDb,
        &iiswc15::TABLE_3,
        &iiswc15::TABLE_4,
        &iiswc15::CharacteristicsHold,
        &iiswc15::SinglePages,
        &iiswc15::Throughput,
        &iiswc15::Combinations,
        &iiswc15::ResponseTime,
        &iiswc15::Aged,
        &iiswc15::Space,
        &iiswc15::Implications,
        &iiswc15::Overhead,
        &hmbio::SqWaiting,
        &hmbio::Queueing,
        &hmbio::AverageLatency,
        &hmbio::Tail,
        &hmbio::PerRequest,
        &hmbio::Flat,
        &hmbio::BackgroundCost,
        &hmbio::ProgramStart,
        &hmbio::RealTime,
        &nvmfs::READ_QUEUEING,
        &nvmfs::WRITE_QUEUEING,
        &nvmfs::Xip,
        &nvmfs::Cumulative,
        &nvmfs::PollOrInterrupt,
        &nvmfs::Readahead,
        &nvmfs::Smartphone,
        &hmb::MapFormula,
    ];
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = experiments().iter().map(|one| one.id()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), experiments().len());
    }
}
