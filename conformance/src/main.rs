//! `dgiwarp-conform`: see the library of the same name.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    dgiwarp_conform::cli::main()
}
