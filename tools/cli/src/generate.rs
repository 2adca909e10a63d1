//! Writes manual pages and completions where readers and shells look for them below a prefix.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

use crate::page::{self, Part};
use crate::{Example, Program};

/// Folder below the prefix for each shell. zsh's is that for software of the machine's administrator; distributions have others.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions"),
    (Shell::Zsh, "share/zsh/site-functions"),
    (Shell::Fish, "share/fish/vendor_completions.d"),
];

/// Writes the manual pages of a program, one for each subcommand too, and its completions below `prefix`, over those that are there.
///
/// # Errors
/// A folder or a file cannot be written.
pub fn generate(command: &Command, program: &Program, prefix: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, folder) in COMPLETIONS {
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder)?;
        let file = generate_to(shell, &mut command.clone(), &name, &folder)?;
        if shell == Shell::Bash {
            // bash-completion loads a file that is called as the program is.
            fs::rename(file, folder.join(&name))?;
        }
    }
    // `help` needs no page.
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let own = format!("{name}(1)");
    let mut see_also = Vec::new();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let examples = program.examples_of(sub.get_name());
        write_man(sub, examples, None, &[&own], &version, prefix)?;
        see_also.push(format!("{name}-{}(1)", sub.get_name()));
    }
    let see_also: Vec<&str> = see_also
        .iter()
        .map(String::as_str)
        .chain(program.see_also.iter().copied())
        .collect();
    write_man(
        &command,
        program.examples,
        Some(program),
        &see_also,
        &version,
        prefix,
    )?;
    for page in (program.pages)() {
        let text = page.render(&version);
        write_page(&page.file_name(), page.section, &text, prefix)?;
    }
    Ok(())
}

fn write_man(
    command: &Command,
    examples: &[Example],
    program: Option<&Program>,
    see_also: &[&str],
    version: &str,
    prefix: &Path,
) -> io::Result<()> {
    let mut parts = page::examples(examples);
    for (heading, paragraphs) in program.map_or(&[][..], |it| it.sections) {
        parts.push(Part::Heading(heading.to_uppercase()));
        parts.extend(
            paragraphs
                .lines()
                .map(|text| Part::Paragraph(text.to_owned())),
        );
    }
    if let Some(program) = program {
        parts.extend(page::environment(&(program.environment)()));
    }
    if !see_also.is_empty() {
        parts.push(Part::Heading("SEE ALSO".to_owned()));
        parts.push(Part::Paragraph(see_also.join(", ")));
    }
    let man = Man::new(command.clone())
        .date(page::NONE)
        .source(format!("dgiwarp {version}"))
        .manual(page::NONE);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    text.extend(page::ragged().into_bytes());
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let has_subcommands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text).map_err(io::Error::other)?;
    text.push_str(&page::render(&parts));
    write_page(&man.get_filename(), 1, &text, prefix)
}

fn write_page(file: &str, section: u8, text: &str, prefix: &Path) -> io::Result<()> {
    let folder = prefix.join(format!("share/man/man{section}"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(file), text)
}
