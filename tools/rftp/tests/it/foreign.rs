//! FTP servers of others.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use xtask::debian::find_program;

use crate::common::succeed;

/// A running server, of which everybody may read all and change what is in `w`.
#[derive(Debug)]
pub(crate) struct Foreign {
    child: Child,
    port: u16,
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl Foreign {
    /// URL of a path in `w`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}/w/{path}", self.port)
    }

    /// The directory `w`.
    pub(crate) fn served(&self) -> PathBuf {
        self.root.join("w")
    }

    /// A command that changes a file's time and keeps its length.
    pub(crate) fn touch(path: &Path) {
        succeed(Command::new("touch").args(["-d", "2001-02-03"]).arg(path));
    }

    fn start(folder: tempfile::TempDir, command: impl FnOnce(u16, &Path) -> Command) -> Self {
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("w")).unwrap();
        fs::create_dir(folder.path().join("empty")).unwrap();
        for path in [folder.path(), &root] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(root.join("w"), fs::Permissions::from_mode(0o777)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|it| it.local_addr())
            .unwrap()
            .port();
        let child = command(port, folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            child,
            port,
            root,
            _folder: folder,
        };
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the server does not begin");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// vsftpd, if it is there and this user is root. `more` are lines of its configuration.
pub(crate) fn vsftpd(more: &str) -> Option<Foreign> {
    let program = find("vsftpd")?;
    Some(Foreign::start(folder(), |port, folder| {
        let path = folder.display();
        let text = format!(
            "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\n\
             anonymous_enable=YES\nlocal_enable=NO\nanon_root={path}/root\nwrite_enable=YES\n\
             anon_upload_enable=YES\nanon_mkdir_write_enable=YES\nanon_other_write_enable=YES\n\
             ftp_username=ftp\nsecure_chroot_dir={path}/empty\nanon_umask=022\n\
             anon_world_readable_only=NO\nseccomp_sandbox=NO\n{more}"
        );
        let file = folder.join("conf");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg(file);
        command
    }))
}

/// proftpd, if it is there and this user is root. Debian has it only where vsftpd is not.
pub(crate) fn proftpd(more: &str) -> Option<Foreign> {
    let program = find("proftpd")?;
    Some(Foreign::start(folder(), |port, folder| {
        let path = folder.display();
        let text = format!(
            "{}ServerType standalone\nServerName t\nDefaultAddress 127.0.0.1\nSocketBindTight on\nPort {port}\nUser ftp\n\
             Group nogroup\nUseReverseDNS off\nRequireValidShell off\nDelayEngine off\nAuthPAM off\n\
             WtmpLog off\nTransferLog none\nSystemLog none\nPidFile {path}/pid\nScoreboardFile {path}/score\n\
             <Anonymous {path}/root>\nUser ftp\nGroup nogroup\nUserAlias anonymous ftp\n\
             RequireValidShell off\nAllowOverwrite on\nAllowStoreRestart on\n</Anonymous>\n{more}",
            modules(&program)
        );
        let file = folder.join("conf");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(&program);
        command.arg("-n").arg("-c").arg(file).stderr(Stdio::null());
        command
    }))
}

/// Modules of one that is installed elsewhere than at `/usr`.
fn modules(program: &Path) -> String {
    let prefix = program.parent().and_then(Path::parent).unwrap();
    format!("ModulePath {}/lib/proftpd\n", prefix.display())
}

/// pyftpdlib, if it is there.
pub(crate) fn pyftpdlib(more: &str) -> Option<Foreign> {
    let python = Path::new("/usr/bin/python3");
    if !Path::new("/usr/lib/python3/dist-packages/pyftpdlib").exists() || !python.exists() {
        xtask::skips::skip("pyftpdlib", "it is not installed");
        return None;
    }
    Some(Foreign::start(folder(), |port, folder| {
        let script = format!(
            "from pyftpdlib.authorizers import DummyAuthorizer\n\
             from pyftpdlib.handlers import FTPHandler as H, TLS_FTPHandler as T\n\
             from pyftpdlib.servers import ThreadedFTPServer\n\
             import logging; logging.basicConfig(level=logging.ERROR)\n\
             h = H\n{more}\n\
             a = DummyAuthorizer(); a.add_anonymous({:?}, perm='elradfmwMT')\n\
             h.authorizer = a\n\
             ThreadedFTPServer(('127.0.0.1', {port}), h).serve_forever()\n",
            folder.join("root")
        );
        let mut command = Command::new(python);
        command.args(["-W", "ignore", "-c", &script]);
        command
    }))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn find(program: &str) -> Option<PathBuf> {
    let found = find_program(program);
    if found.is_none() {
        xtask::skips::skip(program, "it is not installed");
    } else if fs::metadata("/proc/self").unwrap().uid() != 0 {
        xtask::skips::skip(program, "it needs root");
        return None;
    }
    found
}
