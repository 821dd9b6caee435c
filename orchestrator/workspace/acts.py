"""Files that act on this machine: a person or a tool uses the directory, and they do something.

Pure. An agent may change them like any other file; whoever applies that is told first. It is a
list of what is known to act by being there. What a person runs by name (a program, a test) is not
in it, nor what packages brought along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from orchestrator.workspace.paths import plain_parts

SERVERS_STARTED = "programs that read it start the servers it names"
OBEYED = "agents on this machine obey it"
AGENT_SETTINGS = "agents on this machine take settings, hooks and instructions from it"
EDITOR = "the editor takes tasks and settings from it, and may run them"
SHELL = "it runs when a shell enters the directory"
CI = "CI runs it, with its secrets"
BUILT = "a build runs it"
MADE = "make and its like run what it says"
CONTAINER = "it decides what is built and started in containers"
HOOKS = "git hooks run what it says"
INSTALLED = "the package manager obeys it, or runs what it says"
PYTHON = "Python's tools run what it says"
NODE_BIN = "npm and its like run it by its name"
CONFIGURED = "its tool runs it"
GIT = "git obeys it"
DEBUGGED = "a debugger or an interpreter runs it when it starts there"
VARIABLES = "programs take their environment from it"

NPM = "npm runs its scripts"

ACTING_FOLDERS = {
    **dict.fromkeys((".claude", ".cursor", ".gemini", ".codex", ".windsurf"), AGENT_SETTINGS),
    **dict.fromkeys((".continue", ".clinerules", ".roo", ".opencode", ".amazonq"), AGENT_SETTINGS),
    **dict.fromkeys((".github/instructions", ".github/prompts", ".github/agents"), OBEYED),
    **dict.fromkeys((".github/chatmodes", ".kiro", ".junie", ".openhands", ".agents"), OBEYED),
    **dict.fromkeys((".vscode", ".idea", ".fleet", ".zed", ".vs", ".nvim", ".helix"), EDITOR),
    **dict.fromkeys((".github/workflows", ".github/actions", ".circleci", ".buildkite"), CI),
    **dict.fromkeys((".gitea/workflows", ".forgejo/workflows", ".woodpecker", ".gitlab"), CI),
    ".devcontainer": CONTAINER,
    **dict.fromkeys((".husky", ".githooks", ".lefthook", ".hg"), HOOKS),
    **dict.fromkeys((".mvn", "gradle/wrapper", ".gradle", ".cargo"), BUILT),
    **dict.fromkeys((".yarn", ".pnpm"), INSTALLED),
    **dict.fromkeys((".mise", ".config/mise"), SHELL),
}
"""Folders, by their names or by their last two: all in them."""

FIRST_OF_TWO = {name.split("/")[0]: why for name, why in ACTING_FOLDERS.items() if "/" in name}
"""Folders in which there may be one of those that are known by their last two names."""

ACTING_FILES = {
    **dict.fromkeys((".mcp.json", "mcp.json"), SERVERS_STARTED),
    **dict.fromkeys(("claude.md", "claude.local.md", "agents.md", "agent.md"), OBEYED),
    **dict.fromkeys(("agents.override.md", "gemini.md", "copilot-instructions.md"), OBEYED),
    **dict.fromkeys((".cursorrules", ".windsurfrules", ".goosehints", "qwen.md"), OBEYED),
    **dict.fromkeys(("opencode.json", "opencode.jsonc", ".aider.conf.yml"), AGENT_SETTINGS),
    **dict.fromkeys((".exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".vimrc"), EDITOR),
    **dict.fromkeys((".dir-locals.el", ".dir-locals-2.el"), EDITOR),
    **dict.fromkeys((".envrc", "mise.toml", ".mise.toml", "shell.nix", "flake.nix"), SHELL),
    **dict.fromkeys((".env", ".flaskenv"), VARIABLES),
    **dict.fromkeys((".gitlab-ci.yml", ".travis.yml", "jenkinsfile", ".drone.yml"), CI),
    **dict.fromkeys(("azure-pipelines.yml", "bitbucket-pipelines.yml", ".cirrus.yml"), CI),
    **dict.fromkeys(("appveyor.yml", ".appveyor.yml", ".drone.star", "buildkite.yml"), CI),
    **dict.fromkeys(("action.yml", "action.yaml", "renovate.json", "cloudbuild.yaml"), CI),
    **dict.fromkeys(("makefile", "gnumakefile", "bsdmakefile", "justfile", ".justfile"), MADE),
    **dict.fromkeys(("rakefile", "rakefile.rb", "taskfile.yml", "taskfile.yaml"), MADE),
    **dict.fromkeys(("cmakelists.txt", "cmakepresets.json", "meson.build"), BUILT),
    **dict.fromkeys(("build.rs", "rust-toolchain", "rust-toolchain.toml"), BUILT),
    **dict.fromkeys(("gradlew", "gradlew.bat", "mvnw", "mvnw.cmd", "pom.xml"), BUILT),
    **dict.fromkeys(("build.xml", "build.sbt", "build.zig", "mix.exs", "package.swift"), BUILT),
    **dict.fromkeys((".bazelrc", "default.nix", "binding.gyp", "vagrantfile"), BUILT),
    **dict.fromkeys(("dockerfile", "containerfile", ".devcontainer.json"), CONTAINER),
    **dict.fromkeys((".pre-commit-config.yaml", ".pre-commit-config.yml"), HOOKS),
    **dict.fromkeys((".pre-commit-hooks.yaml", ".overcommit.yml", ".lintstagedrc"), HOOKS),
    **dict.fromkeys((".huskyrc", ".simple-git-hooks.json"), HOOKS),
    **dict.fromkeys(
        (".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "bunfig.toml"), INSTALLED
    ),
    **dict.fromkeys(("pnpm-workspace.yaml", "composer.json", "deno.json", "deno.jsonc"), INSTALLED),
    **dict.fromkeys(("gemfile", "podfile", "brewfile", "pip.conf", ".pypirc"), INSTALLED),
    "package.json": NPM,
    **dict.fromkeys(("pyproject.toml", "setup.py", "setup.cfg", "conftest.py"), PYTHON),
    **dict.fromkeys(("tox.ini", "noxfile.py", "pytest.ini", ".pytest.ini"), PYTHON),
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py", "pyvenv.cfg"), PYTHON),
    **dict.fromkeys((".pylintrc", "pylintrc", "mypy.ini", ".mypy.ini"), PYTHON),
    **dict.fromkeys(("gulpfile.js", "gruntfile.js", ".eslintrc.js", ".eslintrc.cjs"), CONFIGURED),
    **dict.fromkeys((".babelrc.js", ".prettierrc.js", ".mocharc.js", ".rspec"), CONFIGURED),
    **dict.fromkeys((".gitmodules", ".gitattributes"), GIT),
    **dict.fromkeys((".gdbinit", ".lldbinit", ".pdbrc", ".irbrc", ".pryrc", ".rprofile"), DEBUGGED),
}
"""Files, by their names in lower case."""

PATTERNS = (
    (
        r"(docker-)?compose[^/]*\.ya?ml|(docker|container)file\..+|.+\.(docker|container)file",
        CONTAINER,
    ),
    (r"\.env\..+", VARIABLES),
    (r".+\.mk", MADE),
    (r".+\.gradle(\.kts)?|.+\.(csproj|vcxproj|fsproj|vbproj|targets|props)", BUILT),
    (r"\.?lefthook(-local)?\.(ya?ml|toml|json)|\.(lintstaged|husky)rc\..+", HOOKS),
    (r".+\.gemspec", INSTALLED),
    (r".+\.pth", PYTHON),
    (r".+\.(config|workspace|setup)\.[cm]?[jt]s", CONFIGURED),
    (r".+\.code-workspace|.+\.sublime-project", EDITOR),
)
_ANY_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern, _ in PATTERNS))
_PATTERNS = tuple((re.compile(pattern), why) for pattern, why in PATTERNS)

INSTALLED_FOLDERS = frozenset(("node_modules", "site-packages", "__pycache__"))
"""What a package manager put there is a package's, and no tool looks there for settings."""

HARMLESS_KEYS = frozenset(
    (
        *("name", "version", "description", "keywords", "license", "author", "contributors"),
        *("homepage", "repository", "bugs", "funding", "private", "files", "type", "types"),
        *("typings", "main", "module", "browser", "exports", "sideEffects", "engines", "os", "cpu"),
        *("dependencies", "devDependencies", "peerDependencies", "peerDependenciesMeta"),
        *("optionalDependencies", "publishConfig", "browserslist"),
    )
)
"""Of package.json; every other key may name something that runs."""


def why_it_acts(path: str) -> str:
    """What a file at this path does without being asked to; empty if it is like any other."""
    names = plain_parts(path)
    if not INSTALLED_FOLDERS.isdisjoint(names):
        return _acts_installed(names)
    above = ""
    for name in names:
        why = ACTING_FOLDERS.get(name) or ACTING_FOLDERS.get(f"{above}/{name}")
        if why:
            return why
        above = name
    return acts_by_name(above, names[-2] if len(names) > 1 else "")


def link_acts(path: str) -> str:
    """The same of a symbolic link, by which a whole folder may come to be there."""
    return why_it_acts(path) or FIRST_OF_TWO.get(plain_parts(path)[-1], "")


def _acts_installed(names: Sequence[str]) -> str:
    """Among installed packages: what an interpreter or a tool runs without being asked."""
    last = names[-1]
    if last.endswith(".pth") or last in ("sitecustomize.py", "usercustomize.py"):
        return PYTHON
    return NODE_BIN if "node_modules" in names and ".bin" in names else ""


def acts_by_name(name: str, folder: str) -> str:
    """The same for a name and that of its folder, in their plain forms."""
    if why := ACTING_FILES.get(name):
        return why
    if folder == "agents" and name.endswith((".md", ".yaml")) and name != "readme.md":
        return OBEYED
    if not _ANY_PATTERN.fullmatch(name):
        return ""  # nearly all names
    return next((why for pattern, why in _PATTERNS if pattern.fullmatch(name)), "")


def npm_part(text: bytes) -> str | None:
    """What of a package.json npm and other tools run; None if that cannot be told."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    part = {key: value[key] for key in sorted(value) if key not in HARMLESS_KEYS}
    return json.dumps(part, sort_keys=True)
