//! Compiled steps of models whose graphs are plans, as those of a program with the facade are.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use tacit_blas as _;
use tacit_fusion as _;

mod captured;
mod in_place;
mod nested_stamps;
mod pages;
mod stamps;
#[path = "../../../core/tests/it/turns.rs"]
mod turns;
