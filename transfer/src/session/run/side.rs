//! The engine of an end, and its threads.

use std::sync::Arc;
use std::time::Duration;

use super::{Sink, Streams, Workers};
use crate::engine::{
    Limit, SinkDone, SinkEngine, SinkJob, SourceDone, SourceEngine, SourceJob, Violation,
};

pub(super) enum Side {
    Source {
        engine: Box<SourceEngine>,
        workers: Workers<SourceJob, SourceDone>,
    },
    Sink {
        engine: Box<SinkEngine>,
        workers: Workers<SinkJob, SinkDone>,
        /// For its remarks.
        sink: Arc<dyn Sink>,
    },
}

impl Side {
    pub(super) fn take_results(&mut self) -> Result<bool, Violation> {
        let mut any = false;
        match self {
            Self::Source { engine, workers } => {
                while let Ok(done) = workers.results.try_recv() {
                    engine.handle_done(done);
                    any = true;
                }
            }
            Self::Sink {
                engine,
                workers,
                sink,
            } => {
                while let Ok(done) = workers.results.try_recv() {
                    // Before the result: that may finish the session.
                    if let Some(text) = sink.remark() {
                        engine.remark(text);
                    }
                    engine.handle_done(done)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    pub(super) fn submit(&mut self) {
        match self {
            Self::Source { engine, workers } => {
                while let Some(job) = engine.poll_job() {
                    workers.submit(job);
                }
            }
            Self::Sink {
                engine, workers, ..
            } => {
                while let Some(job) = engine.poll_job() {
                    workers.submit(job);
                }
            }
        }
    }

    pub(super) fn push_to(&mut self, streams: &mut Streams) {
        while let Some(frame) = match self {
            Self::Source { engine, .. } => engine.poll_transmit(),
            Self::Sink { engine, .. } => engine.poll_transmit(),
        } {
            streams.push(frame);
        }
    }

    /// The part of the pipeline for which the others wait.
    pub(super) fn limit(&self, streams: &Streams) -> Limit {
        match self {
            Self::Source { engine, .. } => engine.limit(streams.flying_blocks()),
            Self::Sink { engine, .. } => engine.limit(),
        }
    }

    /// Time that the threads of files had jobs, and that they had or wanted a processor.
    pub(super) fn usage(&self) -> (Duration, Duration) {
        match self {
            Self::Source { workers, .. } => workers.usage.times(),
            Self::Sink { workers, .. } => workers.usage.times(),
        }
    }

    pub(super) fn source(&mut self) -> Option<&mut SourceEngine> {
        match self {
            Self::Source { engine, .. } => Some(engine),
            Self::Sink { .. } => None,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Source { engine, .. } => engine.is_finished(),
            Self::Sink { engine, .. } => engine.is_finished(),
        }
    }
}
