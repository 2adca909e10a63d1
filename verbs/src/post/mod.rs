//! Posting: `ibv_post_send(3)`, `ibv_post_recv(3)` and `ibv_wr_post(3)`.

pub(crate) mod inline;
pub(crate) mod posting;
pub(crate) mod wr_builder;
pub(crate) mod wr_calls;
