//! Messages about processes that are missing in a recording, for the console and for its notes.

/// Maximum number of processes named on the console. The rest is only counted.
const MAX_NAMED: usize = 5;

/// Processes that are missing in a recording, each as `4711 (dotnet app.dll): why`.
#[derive(Default)]
pub(super) struct UnrecordedProcesses {
    /// .NET processes of the command whose agents did not connect.
    pub(super) processes: Vec<String>,
    /// Build servers that ran before the command, and have used CPU time since.
    pub(super) servers: Vec<String>,
}

impl UnrecordedProcesses {
    /// Summary of the processes, if there are any.
    pub(super) fn summary(&self) -> Option<String> {
        Some(match &self.processes[..] {
            [] => return None,
            [one] => format!("1 .NET process was not recorded: {one}"),
            many => format!(
                "{} .NET processes were not recorded:{}",
                many.len(),
                bullet_list(many)
            ),
        })
    }

    /// Returns the texts for the console.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        let servers = (!self.servers.is_empty()).then(|| {
            format!(
                "build servers that ran before the command worked for it and were not recorded; \
                 run dotnet build-server shutdown first to record new ones:{}",
                bullet_list(&self.servers)
            )
        });
        self.summary().into_iter().chain(servers)
    }

    /// Returns the notes for the recording, a line each.
    pub(super) fn notes(&self) -> Vec<String> {
        let processes = self.processes.iter().take(MAX_NAMED);
        let processes = processes.map(|one| format!(".NET process not recorded: {one}"));
        let more = self.processes.len().saturating_sub(MAX_NAMED);
        let more = (more > 0).then(|| format!("{more} more .NET processes were not recorded"));
        let servers = self.servers.iter().take(MAX_NAMED);
        let servers = servers.map(|one| format!("build server not recorded: {one}"));
        processes.chain(more).chain(servers).collect()
    }
}

fn bullet_list(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines.iter().take(MAX_NAMED) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    match lines.len().saturating_sub(MAX_NAMED) {
        0 => text,
        more => text + &format!("\n  and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_named_and_the_rest_counted() {
        let unseen = |count| UnrecordedProcesses {
            processes: (0..count).map(|n| format!("{n} (x): y")).collect(),
            ..UnrecordedProcesses::default()
        };
        assert_eq!(unseen(0).texts().count() + unseen(0).notes().len(), 0);
        let one: Vec<String> = unseen(1).texts().collect();
        assert_eq!(one, ["1 .NET process was not recorded: 0 (x): y"]);
        let many: Vec<String> = unseen(7).texts().collect();
        assert!(many[0].starts_with("7 .NET processes were not recorded:\n  0 (x): y\n"));
        assert!(many[0].ends_with("\n  4 (x): y\n  and 2 more"), "{many:?}");
        assert_eq!(unseen(7).notes().len(), 6);
    }
}
