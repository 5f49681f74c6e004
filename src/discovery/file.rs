//! A file that may change. It is looked at again and again, by its content: that sees files that
//! are written in place, files that are replaced, and Kubernetes' links to links, and needs nothing
//! of the system. What is half written is not taken: two looks in a row must see the same.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenweir_core::clock;
use xxhash_rust::xxh3::xxh3_64;

/// The file.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    seen: Option<u64>,
    /// The next look is one interval away.
    is_early: bool,
    is_unreadable: bool,
}

/// The time from one look to the next.
const EVERY: Duration = Duration::from_secs(1);
/// The time for which a change must have stood.
const SETTLED: Duration = Duration::from_millis(100);

impl WatchedFile {
    /// A file whose content is the news. Nothing has been seen of it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, is_early: false, is_unreadable: false }
    }

    /// The file at a path, if there is one. What it has now is no news.
    pub async fn of(path: Option<&Path>) -> Option<Self> {
        let mut file = Self::new(path?.to_owned());
        file.skip().await;
        Some(file)
    }

    /// What it has now is no news.
    pub async fn skip(&mut self) {
        self.seen = look(&self.path).await.ok();
    }

    /// What it has now is news again after an interval, because it could not be read when it was news.
    pub fn forget(&mut self) {
        self.seen = None;
        self.is_early = true;
    }

    /// Waits until its content is another one than before and stays so for a moment. A file that
    /// is gone or cannot be read is waited for.
    pub async fn changed(&mut self) {
        if self.is_early {
            pause(EVERY).await;
            self.is_early = false;
        }
        loop {
            let first = look(&self.path).await;
            self.tell(first.as_ref().err());
            if let Ok(first) = first
                && self.seen != Some(first)
            {
                pause(SETTLED).await;
                if look(&self.path).await.is_ok_and(|second| second == first) {
                    self.seen = Some(first);
                    return;
                }
            }
            pause(EVERY).await;
        }
    }

    /// Logs once that it cannot be read, and once that it can be again.
    fn tell(&mut self, error: Option<&io::Error>) {
        let was_unreadable = std::mem::replace(&mut self.is_unreadable, error.is_some());
        let file = self.path.display();
        match error {
            Some(error) if !was_unreadable => {
                tracing::warn!(%file, %error, "a watched file cannot be read; what it said before holds");
            }
            None if was_unreadable => tracing::info!(%file, "a watched file can be read again"),
            _ => {}
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

async fn look(path: &Path) -> io::Result<u64> {
    Ok(xxh3_64(&tokio::fs::read(path).await?))
}

async fn pause(time: Duration) {
    tokio::time::sleep_until((clock::now() + time).into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_news_when_it_has_another_content_for_a_moment() {
        let folder = folder("file");
        let mut file = WatchedFile::new(folder.join("a"));
        let limit = Duration::from_secs(10);
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "it is not there");
        fs::write(file.path(), "one").unwrap();
        file.changed().await;
        fs::write(file.path(), "one").unwrap();
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "written, not changed");
        fs::remove_file(file.path()).unwrap();
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "gone");
        fs::write(file.path(), "two").unwrap();
        file.changed().await;
        fs::write(file.path(), "three").unwrap();
        file.skip().await;
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "taken otherwise");
        let waited = tokio::time::timeout(EVERY / 2, file.changed()).await;
        assert!(waited.is_err());
        file.forget();
        let waited = tokio::time::timeout(EVERY / 2, file.changed()).await;
        assert!(waited.is_err(), "what is forgotten is read after an interval");
        file.changed().await;
        fs::remove_dir_all(folder).unwrap();
    }

    /// The kubelet writes a new folder, and swaps the link to it.
    #[tokio::test(start_paused = true)]
    async fn a_link_that_is_swapped_for_another_is_news() {
        let folder = folder("links");
        for version in ["1", "2"] {
            fs::create_dir_all(folder.join(version)).unwrap();
            fs::write(folder.join(version).join("a.yaml"), version).unwrap();
        }
        symlink("1", folder.join("..data")).unwrap();
        symlink("..data/a.yaml", folder.join("a.yaml")).unwrap();
        let mut file = WatchedFile::new(folder.join("a.yaml"));
        file.changed().await;
        symlink("2", folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
        file.changed().await;
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "2");
        fs::remove_dir_all(folder).unwrap();
    }
}
