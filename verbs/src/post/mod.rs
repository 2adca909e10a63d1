//! Posting: `ibv_post_send(3)`, `ibv_post_recv(3)`, `ibv_wr_post(3)` and `ibv_bind_mw(3)`.

pub(crate) mod bind_mw;
pub(crate) mod inline;
mod list;
mod operation;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod wr_builder;
pub(crate) mod wr_calls;
