//! The engine of an end, and its threads.

use super::Streams;
use super::Workers;
use crate::engine::{
    SinkDone, SinkEngine, SinkJob, SourceDone, SourceEngine, SourceJob, Violation,
};

pub(super) enum Side {
    Source {
        engine: Box<SourceEngine>,
        workers: Workers<SourceJob, SourceDone>,
    },
    Sink {
        engine: Box<SinkEngine>,
        workers: Workers<SinkJob, SinkDone>,
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
            Self::Sink { engine, workers } => {
                while let Ok(done) = workers.results.try_recv() {
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
            Self::Sink { engine, workers } => {
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
