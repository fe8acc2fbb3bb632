package config

import (
	"fmt"
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
	Posting                     // commands that post to apps
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
	{"redis", Common, basic, "", "none", "Redis `URL`: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://; without it, serve and sync run an embedded Redis that keeps nothing"},
	{"redis-password-file", Common, basic, "", "none", "`file` with the Redis password"},
	{"prefix", Common, advanced, "lockstep:{0}:", "", "`prefix` of all Redis keys, with one {hash tag}"},
	{"cell", Common, advanced, "", "none", "`name` of the cell to work in, from the directory of cells, instead of prefix; see docs/scaling.md"},
	{"cells-prefix", Common, advanced, "", "none; lockstep:{dir}: with cell", "`prefix` of the keys of the directory of cells; without cell, commands find a repository's cell and list those of all cells"},
	{"log-level", Common | Following, basic, "", "info; sync logs nothing", "minimum `level` to log: debug, info, warn or error"},
	{"log-format", Common | Following, basic, "text", "", "`format` of the log on standard error: text or json"},

	{"root", Working | Reading | Keeping, basic, "repos", "", "`folder` in which repositories are published"},
	{"credentials", Working | Posting, basic, "", "none", "`folder` of credentials: one subfolder each, with files such as username, password, sshKey, urls"},
	{"worker", Working, advanced, "", "host-pid-random", "`name` of this process in leases and results"},
	{"slots", Working, basic, 4 * runtime.NumCPU(), "4 per core", "maximum number of repositories processed at once"},
	{"lease", Working | Keeping, advanced, 10 * time.Second, "", "`duration` after which a crashed worker's repositories and messages go to other workers"},
	{"lock-wait", Working | Keeping, advanced, 60 * time.Second, "", "maximum `duration` to wait for a repository's lease before the message is redelivered later"},
	{"max-attempts", Working, advanced, 8, "", "failed attempts before a change becomes a dead letter"},
	{"retry-base", Working, advanced, time.Second, "", "`delay` before the second attempt; doubles each time, with jitter"},
	{"retry-max", Working, advanced, 5 * time.Minute, "", "maximum `delay` between attempts"},
	{"max-age", Working, advanced, 7 * 24 * time.Hour, "", "age after which a failing change becomes a dead letter instead of being retried"},
	{"hosts", Working, basic, []string{}, "any", "`hosts` that may be contacted, including redirect targets: names, *.example.org, addresses or ranges, optionally with :port; if empty, any host, but webhooks and redirects may not lead to private networks"},
	{"proxy", Working, basic, "", "as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say", "proxy `URL` for all remotes, SSH included: http, https or socks5; the proxy resolves host names"},
	{"ca-file", Working | Receiving | Posting, basic, "", "none", "PEM `file` of certificate authorities to trust in addition to the system's"},
	{"known-hosts", Working, basic, "", "~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts", "`file` of SSH host keys"},
	{"fetch-timeout", Working, advanced, 30 * time.Minute, "", "maximum `duration` for a remote to send its refs, or its objects"},
	{"host-requests", Working, advanced, 16, "", "maximum requests in flight to one host, over all processes; fewer while the host is slow or limits them"},
	{"host-limits", Working, advanced, []string{}, "none", "`HOST=N`, …: maximum requests in flight to these hosts instead of host-requests"},
	{"circuit-failures", Working, advanced, 5, "", "consecutive failures of a remote or of its objects that open the repository's circuit breaker"},
	{"circuit-open", Working, advanced, 30 * time.Second, "", "`duration` for which the circuit breaker first stays open; doubles each time, up to 10m or this value if that is longer"},
	{"tree-grace", Working | Keeping, advanced, 5 * time.Minute, "", "`duration` for which a replaced tree is kept"},
	{"tree-keep", Working | Keeping, advanced, time.Hour, "", "maximum `duration`, beyond tree-grace, for which a tree is kept because an unacknowledged result names it"},
	{"tree-prepare", Working | Keeping, advanced, 24 * time.Hour, "", "maximum `duration` for which a pushed ref's next tree is kept ready; 0: prepare none"},
	{"outside-links", Working, advanced, "keep", "", "`what` to do with symbolic links that lead out of their tree: keep, skip, or refuse to publish the commit; applies from a ref's next commit on"},
	{"adopt", Working, advanced, true, "", "replace a plain clone of the same remote found at a repository's path, and keep it below .lockstep; false: fail"},
	{"max-tree-files", Working, advanced, 1_000_000, "", "maximum number of files in a tree"},
	{"max-tree-bytes", Working, advanced, Size(8 << 30), "", "maximum size of all files in a tree, in `bytes`"},
	{"max-file-bytes", Working, advanced, Size(512 << 20), "", "maximum size of a single file, in `bytes`"},
	{"max-pack-bytes", Working, advanced, Size(2 << 30), "", "maximum `bytes` that a remote may send in one fetch"},
	{"max-inflated-bytes", Working, advanced, Size(8 << 30), "", "maximum size of the objects of one fetch once decompressed, in `bytes`"},
	{"max-repo-bytes", Working, advanced, Size(32 << 30), "", "`bytes` on disk above which a repository is no longer fetched"},
	{"max-volume-bytes", Working, basic, Size(0), "0: no limit", "`bytes` on disk of all repositories, as last measured, above which nothing is fetched"},
	{"min-free-bytes", Working, basic, Size(512 << 20), "", "free `bytes` on the volume below which nothing is fetched"},
	{"gc-every", Working, advanced, 10 * time.Minute, "", "`interval` between garbage collections, which delete expired trees and measure all repositories; 0: never"},

	{"roles", Serving, basic, DefaultRoles, "receiver,worker,notifier,scheduler", "`roles` of this process: receiver (webhooks and changes over HTTP), worker, notifier (posts results to apps), scheduler (polls, reconciliation), reader (serves published trees over HTTP to apps with a token; needs the volume read-only)"},
	{"cell-reader", Serving, advanced, "", "none", "base `URL` of the HTTP API of this cell's readers, for the directory of cells, from which other cells copy what is moved and get what their clients ask for"},
	{"move-rate", Working, advanced, 10, "", "maximum `number` of repositories per second that a worker begins to move to its cell"},
	{"poll-every", Serving, basic, time.Hour, "", "`interval` between polls of a watched repository, with jitter; a watch can override it; 0: poll only where a watch says so"},
	{"reconcile-every", Serving, advanced, 6 * time.Hour, "", "`interval` between comparisons of watches, state and volume; 0: never"},
	{"listen", Serving | Probing | Following, basic, "", "none", "`address` for HTTP: webhooks, API, dashboard, metrics, health"},
	{"admin-listen", Serving | Probing | Following, basic, "", "none", "`address` for operators only: profiles, metrics, health; for example 127.0.0.1:6060"},
	{"api-token-file", Serving | Following, basic, "", "none", "`file` with the bearer token of the HTTP API and the dashboard, at least 16 bytes (or set LOCKSTEP_API_TOKEN)"},
	{"dashboard", Serving, advanced, true, "true", "serve the dashboard at /"},
	{"admin-header", Serving, advanced, "", "none", "`header` in which a trusted proxy names the user who may make changes on the dashboard, such as X-Forwarded-User; requires trusted-proxies"},
	{"admin-users", Serving, advanced, []string{}, "any user that the proxy names", "`users` accepted in admin-header; if empty, any"},
	{"trusted-proxies", Serving | Following, advanced, []string{}, "none", "`addresses` and ranges of the proxies whose admin-header and X-Forwarded-Proto are trusted, such as 10.0.0.0/8"},
	{"hooks", Serving | Receiving, basic, "", "none", "`folder` of webhook sources: one subfolder each, with files such as forge, secret; see docs/webhooks.md"},
	{"spool", Serving, basic, "spool", "", "`folder` on a local disk that holds webhooks while Redis is unavailable; empty: refuse them instead"},
	{"spool-max-bytes", Serving, advanced, Size(1 << 30), "", "maximum `bytes` of webhooks in the spool"},
	{"deliveries-keep", Serving, advanced, 72 * time.Hour, "", "`duration` for which webhook delivery IDs are remembered for deduplication"},
	{"grace", Serving | Following, advanced, 25 * time.Second, "", "`duration` that work in flight has to finish after SIGTERM"},
	{"notify-hosts", Serving | Posting, basic, []string{}, "any outside private networks", "`hosts` to which notifications may be posted: names, *.example.org, addresses or ranges, optionally with :port; if empty, any host outside private networks"},
	{"stream-max-length", Serving, advanced, 1_000_000, "", "maximum `entries` in a stream; beyond that the oldest are dropped, even if unsettled"},
	{"results-keep", Serving, advanced, time.Hour, "", "minimum `duration` for which results stay readable"},
	{"dead-max-age", Serving, advanced, 30 * 24 * time.Hour, "720h", "`duration` after which a dead letter is dropped"},
	{"dead-max-length", Serving, advanced, 50_000, "", "maximum number of dead `letters`; beyond that the oldest are dropped"},
	{"dead-max-bytes", Serving, advanced, Size(256 << 20), "", "maximum memory of all dead letters in Redis, in `bytes`; beyond that the oldest are dropped"},
}

func defaults() map[string]any {
	values := map[string]any{}
	for _, s := range settings {
		values[s.name] = s.value
	}
	return values
}

func find(name string) (entry, bool) {
	for _, s := range settings {
		if s.name == name {
			return s, true
		}
	}
	return entry{}, false
}

// fits returns an error if a YAML value is not of the setting's type. A silent conversion would be
// wrong: 300 would mean 300 ns, true one slot, and a list its first element.
func (s entry) fits(value any) error {
	ok := false
	switch s.value.(type) {
	case string, time.Duration:
		_, ok = value.(string)
	case int:
		_, ok = value.(int)
	case Size:
		_, err := ParseSize(fmt.Sprint(value))
		ok = err == nil
	case bool:
		_, ok = value.(bool)
	case []string:
		_, ok = value.(string)
		if list, isList := value.([]any); isList {
			ok = !slices.ContainsFunc(list, func(item any) bool { _, isText := item.(string); return !isText })
		}
	}
	if !ok {
		return fmt.Errorf("%s: want %s", s.name, s.want())
	}
	return nil
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
		case Size:
			flags.Var(&value, s.name, s.usage)
		case bool:
			flags.Bool(s.name, value, s.usage)
		case time.Duration:
			flags.Duration(s.name, value, s.usage)
		case []string:
			flags.StringSlice(s.name, value, s.usage)
		}
	}
}
