"""`orchestrator completion`: what a shell needs to complete our command lines."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import Annotated, Literal

import typer

from orchestrator.surfaces.text import write

Shell = Literal["bash", "zsh", "fish"]

COMPLETE = "__complete"
"""The hidden command that a shell asks: which shell, and the words up to the one that is typed."""

BASH = """\
_orchestrator() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            :files*) compopt -o default 2> /dev/null ;;
            :dirs*) compopt -o dirnames 2> /dev/null ;;
            ?*) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <(PROGRAM __complete bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
}
complete -F _orchestrator orchestrator
"""

ZSH = """\
#compdef orchestrator
_orchestrator() {
    local line word
    local -a values
    for line in "${(@f)$(PROGRAM __complete zsh -- "${(@)words[2,$CURRENT]}" 2> /dev/null)}"; do
        case "$line" in
            :files*) _files; return ;;
            :dirs*) _files -/; return ;;
            ?*)
                word="${line%%$'\\t'*}"
                values+=("${word//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done
    _describe -t values orchestrator values
}
if [ "${funcstack[1]}" = _orchestrator ]; then
    _orchestrator "$@"
else
    compdef _orchestrator orchestrator
fi
"""

FISH = """\
function __orchestrator_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    for line in (PROGRAM __complete fish -- $before[2..-1] "$current" 2> /dev/null)
        switch $line
            case ':files*'
                __fish_complete_path "$current"
            case ':dirs*'
                __fish_complete_directories "$current"
            case '*'
                echo $line
        end
    end
end
complete -c orchestrator -f -a '(__orchestrator_complete)'
"""

SCRIPTS: dict[Shell, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print what makes a shell complete our commands: agents and runs too.

    bash: add `source <(orchestrator completion bash)` to ~/.bashrc.

    zsh: add `source <(orchestrator completion zsh)` to ~/.zshrc, after compinit.

    fish: orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish
    """
    from orchestrator.surfaces.cli.setup.init import own_command

    print(SCRIPTS[shell].replace("PROGRAM", shlex.quote(own_command())), end="")


def complete(
    shell: Annotated[str, typer.Argument(help="Which shell asks.")],
    words: Annotated[list[str] | None, typer.Argument(help="Up to the one that is typed.")] = None,
) -> None:
    """Say what could stand where the cursor is: a word on each line, and what it means."""
    from orchestrator.errors import OrchestratorError
    from orchestrator.surfaces.cli.completing import candidates, joined_at_equals
    from orchestrator.surfaces.cli.main import command_tree

    typed = list(words or [""])
    if shell == "bash":
        typed = joined_at_equals(typed)
    with suppress(OrchestratorError, OSError):  # a shell has no place for what is wrong
        for each in candidates(command_tree(), typed):
            # bash takes the part after a = for a word of its own.
            word = each.word.rpartition("=")[2] if shell == "bash" else each.word
            write(f"{word}\t{each.about}", sys.stdout)
