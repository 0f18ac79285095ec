//! Drives that stay: an image with the state of a drive beside it (docs/spec/flash.md).

use crate::device::{Open, medium};
use crate::error::StackError;
use crate::profile::DriveProfile;
use crate::spec::{DeviceSpec, FlushTo, Medium, VirtualSpec};
use nvmed_flash::{Flash, Profile};
use nvmed_vdev::{Clock, Controller, ControllerConfig, DriveFile, Flush, KeptDrive, Media};
use std::path::Path;
use std::sync::Arc;

/// The drive that an image is.
pub(crate) struct ImageDrive {
    profile: DriveProfile,
    bytes: u64,
}

/// Bytes of the drive that an image is, whichever engine opens it; `None` of an image that is none.
///
/// # Errors
/// The file beside it is the state of no drive.
pub fn drive_bytes(image: &str) -> Result<Option<u64>, StackError> {
    let described = DriveFile::describe(Path::new(image)).map_err(|error| StackError::DriveFile { error })?;
    Ok(described.map(|drive| drive.image_bytes))
}

/// The drive that a device's image is, if it is one.
pub(crate) fn beside(spec: &VirtualSpec) -> Result<Option<ImageDrive>, StackError> {
    if spec.medium != Medium::File {
        return Ok(None);
    }
    let described =
        DriveFile::describe(Path::new(&spec.path)).map_err(|error| StackError::DriveFile { error })?;
    let Some(described) = described else { return Ok(None) };
    let name = DriveFile::beside(Path::new(&spec.path)).display().to_string();
    let profile = DriveProfile::read(&name, &described.profile)
        .map_err(|fault| StackError::Profile { device: spec.path.clone(), fault })?;
    Ok(Some(ImageDrive { profile, bytes: described.image_bytes }))
}

impl ImageDrive {
    /// A controller of the drive, in the state in which it was left.
    pub fn controller(
        &self,
        spec: &VirtualSpec,
        open: Open,
        mut config: ControllerConfig,
    ) -> Result<Arc<Controller>, StackError> {
        let is_drive = |what| StackError::IsDrive { image: spec.path.clone(), bytes: self.bytes, what };
        if matches!(open, Open::Create { bytes } if bytes != self.bytes) {
            return Err(is_drive("the size, or make another drive of it with `nvmed device create --again`"));
        }
        if spec.size_bytes.is_some_and(|bytes| bytes != self.bytes) {
            return Err(is_drive("`size`, or make another drive of it with `nvmed device create --again`"));
        }
        if spec.behaviour.profile.is_some() {
            return Err(is_drive("`profile`"));
        }
        if spec.behaviour.fixed().is_some() {
            return Err(is_drive("`latency` and `bandwidth`"));
        }
        let media = medium(spec, open)?;
        let given = self.profile.give_drive(self.bytes, &mut config);
        given.map_err(|fault| StackError::Profile {
            device: DeviceSpec::Virtual(spec.clone()).to_string(),
            fault,
        })?;
        let asked = spec.behaviour.host_memory.ask(&mut config);
        let device = || DeviceSpec::Virtual(spec.clone()).to_string();
        asked.map_err(|error| StackError::Spec { device: device(), error })?;
        let profile = config.drive.as_ref().expect("given above");
        let place = (Path::new(&spec.path), &media, flush(spec));
        let drive = KeptDrive::open(place, profile).map_err(|error| StackError::DriveFile { error })?;
        if spec.behaviour.clock.is_none() {
            config.clock = Clock::Threaded;
        }
        Ok(Controller::with_kept_drive(config, media, drive))
    }
}

/// The drive of a device as a model by itself, as it is now, and its bytes; nothing is changed.
pub(crate) fn model(spec: &VirtualSpec) -> Result<(Profile, Flash, u64), StackError> {
    let name = || DeviceSpec::Virtual(spec.clone()).to_string();
    let media = medium(spec, Open::Existing { locked_by_run: false })?;
    let kept = beside(spec)?;
    let mut config = ControllerConfig::default();
    let given = match &kept {
        Some(drive) => drive.profile.give_drive(drive.bytes, &mut config),
        None => spec.behaviour.give_drive(media.bytes(), &mut config),
    };
    given.map_err(|fault| StackError::Profile { device: name(), fault })?;
    let profile = config.drive.ok_or_else(|| StackError::Timeless { device: name() })?;
    let mut flash = Flash::new(&profile).expect("a profile's reader has checked it");
    if kept.is_some() {
        let place = (Path::new(&spec.path), &media, flush(spec));
        DriveFile::open(place, &profile, &mut flash).map_err(|error| StackError::DriveFile { error })?;
    }
    Ok((profile, flash, media.bytes()))
}

fn flush(spec: &VirtualSpec) -> Flush {
    match spec.flush {
        FlushTo::Host => Flush::Host,
        FlushTo::Process => Flush::Process,
    }
}

/// How a drive is made of an image.
#[derive(Clone, Debug)]
pub struct NewDrive<'a> {
    /// The image.
    pub image: &'a str,
    /// What it is to be like.
    pub profile: &'a DriveProfile,
    /// Its bytes; absent, those of the image, if there is one, or else the profile's usual ones.
    pub size_bytes: Option<u64>,
    /// Whether it may be a drive already.
    pub again: bool,
    /// As after having been written at random for long.
    pub used: bool,
}

/// Makes a drive of an image, whose bytes stay as they are; the image is made if there is none, and grows to the size.
/// Answers the drive.
///
/// # Errors
/// The size fits no drive of the profile, the image is in use or a drive already, or the host refuses.
pub fn create_drive(new: &NewDrive<'_>) -> Result<Profile, StackError> {
    let image = Path::new(new.image);
    if !new.again && DriveFile::is_beside(image) {
        return Err(StackError::AlreadyDrive { image: new.image.to_owned() });
    }
    let there = std::fs::metadata(image).ok().map(|found| found.len()).filter(|&bytes| bytes > 0);
    let bytes = new.size_bytes.or(there).unwrap_or(new.profile.usual_bytes());
    let fail = |fault| StackError::Profile { device: new.image.to_owned(), fault };
    // Before a file is made that no drive of the profile fits.
    let profile = new.profile.drive(bytes).map_err(fail)?;
    check_wear(new.profile, &profile, new.used)?;
    DriveFile::check_profile(new.profile.text()).map_err(|error| StackError::DriveFile { error })?;
    let spec = VirtualSpec { path: new.image.to_owned(), ..VirtualSpec::default() };
    let media = medium(&spec, Open::Create { bytes })?;
    if media.bytes() != bytes {
        let (image, is) = (new.image.to_owned(), media.bytes());
        return Err(StackError::Shrinks { image, bytes: is, wanted: bytes });
    }
    let kept = keep(&spec, &media, (&profile, new.profile.text()), new.used);
    if kept.is_err() && there.is_none() {
        // Nothing was in it, and nothing is made of it.
        let _ = std::fs::remove_file(image);
    }
    kept.map(|()| profile)
}

/// Makes a drive anew, as after having been written at random for long; its bytes stay as they are.
///
/// # Errors
/// The image is no drive, or is in use.
pub fn precondition_drive(image: &str) -> Result<Profile, StackError> {
    let spec = VirtualSpec { path: image.to_owned(), ..VirtualSpec::default() };
    let media = medium(&spec, Open::Existing { locked_by_run: false })?;
    let Some(drive) = beside(&spec)? else { return Err(StackError::NoDrive { image: image.to_owned() }) };
    let fail = |fault| StackError::Profile { device: image.to_owned(), fault };
    let profile = drive.profile.drive(drive.bytes).map_err(fail)?;
    check_wear(&drive.profile, &profile, true)?;
    keep(&spec, &media, (&profile, drive.profile.text()), true)?;
    Ok(profile)
}

fn check_wear(profile: &DriveProfile, drive: &Profile, used: bool) -> Result<(), StackError> {
    let has_wear = matches!(&drive.medium, nvmed_flash::Medium::Array(array) if array.translation.is_some());
    if used && !has_wear {
        return Err(StackError::NoWear { profile: profile.name().to_owned() });
    }
    Ok(())
}

fn keep(spec: &VirtualSpec, media: &Media, profile: (&Profile, &str), used: bool) -> Result<(), StackError> {
    KeptDrive::create((Path::new(&spec.path), media, flush(spec)), profile, used)
        .map(|_| ())
        .map_err(|error| StackError::DriveFile { error })
}
