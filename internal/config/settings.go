package config

import (
	"runtime"
	"slices"
	"time"

	"github.com/spf13/pflag"
)

// EnvPrefix starts the name of every environment variable: LOCKSTEP_LOCK_WAIT sets lock-wait.
const EnvPrefix = "LOCKSTEP_"

// The roles of a process.
const (
	RoleReceiver  = "receiver"  // accepts webhooks and changes over HTTP
	RoleWorker    = "worker"    // processes changes
	RoleNotifier  = "notifier"  // posts results to apps
	RoleScheduler = "scheduler" // polls watched repositories and reconciles
	RoleReader    = "reader"    // serves published trees over HTTP
)

// DefaultRoles are the roles of a process that names none. Serving content is opted into.
var DefaultRoles = []string{RoleReceiver, RoleWorker, RoleNotifier, RoleScheduler}

// Roles lists all roles.
var Roles = append(slices.Clone(DefaultRoles), RoleReader)

// Group is a set of settings that a command accepts as flags.
type Group int

// The groups.
const (
	Common    Group = 1 << iota // commands that connect to Redis
	Working                     // commands that run a worker
	Serving                     // serve
	Reading                     // commands that read published trees
	Keeping                     // commands that maintain the volume
	Probing                     // commands that query a running process
	Following                   // follow
	Receiving                   // commands that read the webhook sources
	Posting                     // commands that notify apps
)

// tier is where a setting is documented.
type tier int

const (
	basic    tier = iota // relevant to most deployments
	advanced             // the default suits most deployments
)

type entry struct {
	name  string
	group Group
	tier  tier
	value any    // the default; its type is the setting's type
	shown string // the default as documented; empty means value
	usage string
}

// settings lists every setting, in the order in which help and docs/configuration.md show them.
var settings = []entry{
	{"redis", Common, basic, "", "none", "Redis `URL`: redis://, rediss://, unix://, redis+sentinel:// or " +
		"redis+cluster://; without it, serve and sync run an embedded Redis that keeps nothing"},
	{"redis-password-file", Common, basic, "", "none", "`file` with the Redis password"},
	{"prefix", Common, advanced, "lockstep:{0}:", "", "`prefix` of all Redis keys, with one {hash tag}"},
	{"cell", Common, advanced, "", "none", "`name` of the cell to work in, from the directory of cells, " +
		"instead of prefix; all: commands find a repository's cell and list those of all cells; see docs/scaling.md"},
	{"log-level", Common | Following, basic, "", "info; sync logs nothing",
		"minimum `level` to log: debug, info, warn or error"},
	{"log-format", Common | Following, basic, "text", "", "`format` of the log on standard error: text or json"},

	{"root", Working | Reading | Keeping | Posting, basic, "repos", "", "`folder` in which repositories are published"},
	{"credentials", Working | Posting, basic, "", "none", "`folder` of credentials: one subfolder each, " +
		"with files such as username, password, sshKey, urls"},
	{"worker", Working, advanced, "", "host-pid-random", "`name` of this process in leases and results"},
	{"slots", Working, basic, 4 * runtime.NumCPU(), "4 per core",
		"maximum number of repositories indexed and built at once"},
	{"lease", Working | Keeping, advanced, 10 * time.Second, "", "`duration` after which a crashed worker's " +
		"repositories and messages go to other workers; retries and circuit breakers follow it"},
	{"lock-wait", Working | Keeping, advanced, 60 * time.Second, "", "maximum `duration` to wait for a repository's " +
		"lease before the message is redelivered later"},
	{"max-attempts", Working, advanced, 8, "", "failed attempts before a change becomes a dead letter"},
	{"hosts", Working, basic, []string{}, "any", "`hosts` that may be contacted, including redirect targets: names, " +
		"*.example.org, addresses or ranges, optionally with :port; if empty, any host, but webhooks and redirects " +
		"may not lead to private networks"},
	{"proxy", Working, basic, "", "as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say", "proxy `URL` for all remotes, " +
		"SSH included: http, https or socks5; the proxy resolves host names"},
	{"ca-file", Working | Receiving | Posting, basic, "", "none",
		"PEM `file` of certificate authorities to trust in addition to the system's; read again when it " +
			"changes"},
	{"known-hosts", Working, basic, "", "~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts", "`file` of SSH host keys"},
	{"rewrite", Working | Receiving, basic, []string{}, "none", "`pairs` of URL prefixes FROM=TO: what is " +
		"written with the first is asked at the second, as with git's insteadOf: " +
		"https://github.com/=https://git.example.org/mirrors/"},
	{"host-requests", Working, advanced, []string{"16"}, "16", "maximum `requests` of a worker in flight to one host, " +
		"and HOST=N for single hosts: 16,github.com=32; fewer while the host limits them"},
	{"host-timeouts", Working, advanced, []string{"refs=60s", "pack=120s", "silence=60s"}, "refs=60s,pack=120s,silence=60s",
		"maximum `durations` until a host sends the first byte of a list of refs or of a pack, and between two bytes; " +
			"for single hosts HOST/NAME=DURATION: git.example.org/pack=10m"},
	{"tree-grace", Working | Keeping, advanced, 5 * time.Minute, "", "`duration` for which a replaced tree is kept; " +
		"the intervals of garbage collection follow it"},
	{"outside-links", Working, advanced, "keep", "", "`what` to do with symbolic links that lead out of their tree: " +
		"keep, skip, or refuse to publish the commit; applies from a ref's next commit on"},
	{"limits", Working, basic, []string{"default"}, "default", "`limits` of repositories, fetches and the volume: " +
		"default or large, and NAME=VALUE for single ones: large,max-pack-bytes=32GiB; see docs/configuration.md"},

	{"roles", Serving, basic, DefaultRoles, "receiver,worker,notifier,scheduler", "`roles` of this process: " +
		"receiver (webhooks and changes over HTTP), worker, notifier (posts results to apps), scheduler (polls, " +
		"reconciliation), reader (serves published trees over HTTP to apps with a token; needs the volume read-only)"},
	{"cell-reader", Serving, advanced, "", "none", "base `URL` of the HTTP API of this cell's readers, " +
		"for the directory of cells, from which other cells get what their clients ask for"},
	{"poll-every", Serving, basic, time.Hour, "", "`interval` between polls of a watched repository, with jitter; " +
		"a watch can override it; 0: poll only where a watch says so"},
	{"listen", Serving | Probing | Following, basic, "", "none",
		"`address` for HTTP: webhooks, API, dashboard, metrics, health"},
	{"admin-listen", Serving | Probing | Following, basic, "", "none",
		"`address` for operators only: profiles, metrics, health; for example 127.0.0.1:6060"},
	{"api-token-file", Serving | Following, basic, "", "none", "`file` with the bearer token of the HTTP API and the " +
		"dashboard, at least 16 bytes (or set LOCKSTEP_API_TOKEN)"},
	{"admin-header", Serving, advanced, "", "none", "`header` in which a trusted proxy names the user who may make " +
		"changes on the dashboard, such as X-Forwarded-User, or with the users to accept X-Forwarded-User=ada,bob; " +
		"requires trusted-proxies"},
	{"trusted-proxies", Serving | Following, advanced, []string{}, "none", "`addresses` and ranges of the proxies " +
		"whose admin-header and X-Forwarded-Proto are trusted, such as 10.0.0.0/8"},
	{"hooks", Serving | Receiving, basic, "", "none", "`folder` of webhook sources: one subfolder each, " +
		"with files such as forge, secret; see docs/webhooks.md"},
	{"spool", Serving, basic, "spool", "", "`folder` on a local disk that holds webhooks while Redis is unavailable; " +
		"empty: refuse them instead"},
	{"grace", Serving | Following, advanced, 25 * time.Second, "",
		"`duration` that work in flight has to finish after SIGTERM"},
	{"notify-hosts", Serving | Posting, basic, []string{}, "any outside private networks", "`hosts` to which " +
		"notifications may be posted: names, *.example.org, addresses or ranges, optionally with :port; " +
		"if empty, any host outside private networks"},
	{"exec", Serving | Following | Posting, basic, []string{}, "none", "`commands` to run in a published tree: APP=COMMAND " +
		"in place of notifications to an app; COMMAND for follow; its words are separated by spaces, and no shell is used"},
	{"exec-timeout", Serving | Following | Posting, advanced, 5 * time.Minute, "", "`duration` after which such a command is " +
		"killed, to be run again"},
	{"results-keep", Serving, advanced, time.Hour, "", "minimum `duration` for which results stay readable"},
}

func find(name string) (entry, bool) {
	for _, s := range settings {
		if s.name == name {
			return s, true
		}
	}
	return entry{}, false
}

// AddFlags adds the flags of the given groups.
func AddFlags(flags *pflag.FlagSet, groups Group) {
	for _, s := range settings {
		if s.group&groups == 0 {
			continue
		}
		switch value := s.value.(type) {
		case string:
			flags.String(s.name, value, s.usage)
		case int:
			flags.Int(s.name, value, s.usage)
		case time.Duration:
			flags.Duration(s.name, value, s.usage)
		case []string:
			flags.StringSlice(s.name, value, s.usage)
		}
	}
}
