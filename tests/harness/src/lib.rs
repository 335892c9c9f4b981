//! Starts, drives, stops and kills real Ringfence processes for tests.
