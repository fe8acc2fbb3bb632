package config

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// EnvPrefix begins the name of every variable that sets something: LOCKSTEP_LOCK_WAIT sets lock-wait.
const EnvPrefix = "LOCKSTEP_"

// The roles that a process may play.
const (
	RoleReceiver  = "receiver"  // takes webhooks and changes over HTTP, when it listens
	RoleWorker    = "worker"    // works on changes
	RoleNotifier  = "notifier"  // posts results to apps
	RoleScheduler = "scheduler" // has watched repositories polled, and reconciles
)

// Roles are all roles.
var Roles = []string{RoleReceiver, RoleWorker, RoleNotifier, RoleScheduler}

// Group is a set of settings that a subcommand takes as flags.
type Group int

// The groups.
const (
	Common  Group = 1 << iota // every subcommand that reaches Redis
	Working                   // subcommands that run a worker
	Serving                   // the service alone
	Reading                   // subcommands that read what is published
	Keeping                   // subcommands that take care of the volume
	Probing                   // subcommands that ask a running process
)

type entry struct {
	name  string
	group Group
	value any // the default, and by its type the setting's
	shown string
	usage string
}

// settings is all there is to set, in the order in which help and README show it.
var settings = []entry{
	{"redis", Common, "", "none", "Redis `URL` (redis://, rediss://, unix://, redis+sentinel://, redis+cluster://); serve and sync without it: an embedded one, gone with the process"},
	{"redis-password-file", Common, "", "none", "`file` with the Redis password"},
	{"prefix", Common, "lockstep:{0}:", "", "`prefix` of all Redis keys, with one {hash tag}"},
	{"log-level", Common, "", "info; sync logs nothing", "least `level` to log: debug, info, warn or error"},
	{"log-format", Common, "text", "", "`format` of the log on standard error: text or json"},

	{"root", Working | Reading | Keeping, "repos", "", "`folder` to publish below"},
	{"credentials", Working, "", "none", "`folder` of credentials, one folder each with files such as username, password, sshKey, urls"},
	{"worker", Working, "", "host-pid-random", "`name` of this process in leases and results"},
	{"slots", Working, 4 * runtime.NumCPU(), "4 per core", "repositories worked on at once"},
	{"lease", Working | Keeping, 10 * time.Second, "", "`duration` after which a dead worker's lease and messages go to others"},
	{"lock-wait", Working | Keeping, 60 * time.Second, "", "`duration` that a message waits for its repository before it goes back to the stream"},
	{"max-attempts", Working, 8, "", "failed attempts after which an event is given up"},
	{"retry-base", Working, time.Second, "", "`delay` before the second attempt; doubles with each, with jitter"},
	{"retry-max", Working, 5 * time.Minute, "", "longest `delay` between attempts"},
	{"max-age", Working, 7 * 24 * time.Hour, "", "an event published so long ago is given up rather than tried again"},
	{"hosts", Working, []string{}, "any", "`hosts` that may be asked, redirects' targets too: names, *.example.org, addresses, ranges, perhaps with :port; none: any, but no private network for webhooks and redirects"},
	{"proxy", Working, "", "as HTTP_PROXY, HTTPS_PROXY and NO_PROXY say", "`URL` of the proxy for all remotes, SSH too: http, https or socks5; it resolves their names itself"},
	{"ca-file", Working, "", "none", "`file` of certificate authorities, PEM, to trust beside the system's"},
	{"known-hosts", Working, "", "~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts", "`file` of SSH host keys"},
	{"fetch-timeout", Working, 30 * time.Minute, "", "`duration` that a remote may take to send its refs, or its objects"},
	{"circuit-failures", Working, 5, "", "failures in a row, of the remote or of its objects, after which a repository is left alone for a while"},
	{"circuit-open", Working, 30 * time.Second, "", "`duration` for which it is, the first time; doubles with each, to 10m or this if it is longer"},
	{"tree-grace", Working | Keeping, 5 * time.Minute, "", "`duration` for which a tree outlives its being replaced"},
	{"tree-keep", Working | Keeping, time.Hour, "", "longest `duration` for which a tree outlives its grace because a result that nobody has settled names it"},
	{"tree-reuse", Working | Keeping, false, "", "bring trees that nobody needs any more forward, instead of building each anew: for readers who pin what they read"},
	{"outside-links", Working, "keep", "", "`what` becomes of symbolic links that point out of their tree: keep, skip, or refuse to publish it; from a ref's next commit on"},
	{"adopt", Working, true, "", "adopt a plain clone of the same remote that is in a repository's place, and keep it below .lockstep; false: refuse"},
	{"max-tree-files", Working, 1_000_000, "", "files in a tree beyond which it is not published"},
	{"max-tree-bytes", Working, int64(8 << 30), "8 GiB", "`bytes` in all files of a tree beyond which it is not published"},
	{"max-file-bytes", Working, int64(512 << 20), "512 MiB", "`bytes` in a file beyond which what has it is not fetched"},
	{"max-pack-bytes", Working, int64(2 << 30), "2 GiB", "`bytes` that a remote may send for one fetch"},
	{"max-inflated-bytes", Working, int64(8 << 30), "8 GiB", "`bytes` that the objects of one fetch may come to"},
	{"max-repo-bytes", Working, int64(32 << 30), "32 GiB", "`bytes` on disk beyond which a repository is not fetched"},
	{"max-volume-bytes", Working, int64(0), "0: no limit", "`bytes` on disk of all repositories, as last patrolled, beyond which none is fetched"},
	{"min-free-bytes", Working, int64(512 << 20), "512 MiB", "`bytes` free on the volume below which nothing is fetched"},
	{"patrol-every", Working, 10 * time.Minute, "", "`duration` between two looks at all repositories, to drop what is over and to measure; 0: never"},

	{"roles", Serving, Roles, "receiver,worker,notifier,scheduler", "`roles` to play: receiver (webhooks and changes over HTTP), worker, notifier (results to apps), scheduler (polls, reconciling)"},
	{"poll-every", Serving, time.Hour, "", "`duration` between two polls of a watched repository, with jitter, unless its watches say otherwise; 0: those that leave it open are not polled"},
	{"reconcile-every", Serving, 6 * time.Hour, "", "`duration` between two comparisons of registry, state and volume; 0: never"},
	{"listen", Serving | Probing, "", "none", "`address` for HTTP: webhooks, the API, the dashboard, metrics, health"},
	{"admin-listen", Serving | Probing, "", "none", "`address` for operators alone: profiles, metrics, health; 127.0.0.1:6060, say"},
	{"api-token-file", Serving, "", "none", "`file` with the bearer token of the HTTP API and the dashboard (or LOCKSTEP_API_TOKEN)"},
	{"dashboard", Serving, true, "true", "show the dashboard at / where HTTP is served; see docs/dashboard.md"},
	{"admin-header", Serving, "", "none", "`header` in which a trusted proxy names the user who may change something on the dashboard, such as X-Forwarded-User; wants trusted-proxies"},
	{"admin-users", Serving, []string{}, "whoever the proxy names", "`users` whose name in admin-header is taken; none: any"},
	{"trusted-proxies", Serving, []string{}, "none", "`addresses` and ranges of the proxies whose admin-header is believed, as in 10.0.0.0/8"},
	{"hooks", Serving, "", "none", "`folder` of webhook sources, one folder each with files such as forge, secret; see docs/webhooks.md"},
	{"spool", Serving, "spool", "", "`folder` on a disk of this machine that keeps webhooks while Redis is away; empty: they are refused then"},
	{"spool-max-bytes", Serving, int64(1 << 30), "1 GiB", "`bytes` of webhooks that each process keeps there"},
	{"deliveries-keep", Serving, 72 * time.Hour, "", "`duration` for which a webhook that was taken is known when it comes again"},
	{"grace", Serving, 25 * time.Second, "", "`duration` that work in flight has to finish after SIGTERM"},
	{"notify-hosts", Serving, []string{}, "any that is not on a private network", "`hosts` that apps may be notified at: names, *.example.org, addresses, ranges, perhaps with :port; none: any, but no private network"},
	{"stream-max-length", Serving, 1_000_000, "", "`entries` after which a stream loses its oldest, though a group has yet to settle them"},
	{"results-keep", Serving, time.Hour, "", "least `duration` that a result stays readable"},
	{"dead-max-age", Serving, 30 * 24 * time.Hour, "720h", "`duration` after which a dead letter is dropped"},
	{"dead-max-length", Serving, 50_000, "", "`letters` after which the oldest are dropped"},
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

// fits refuses a YAML value of another type than the setting's. Converted it would be something that
// nobody meant: 300 is 300 ns, true is one slot, a list is its first folder.
func (s entry) fits(value any) error {
	ok := false
	switch s.value.(type) {
	case string, time.Duration:
		_, ok = value.(string)
	case int, int64:
		_, ok = value.(int)
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
		case int64:
			flags.Int64(s.name, value, s.usage)
		case bool:
			flags.Bool(s.name, value, s.usage)
		case time.Duration:
			flags.Duration(s.name, value, s.usage)
		case []string:
			flags.StringSlice(s.name, value, s.usage)
		}
	}
}

// Table is the settings as a Markdown table, for the README.
func Table() string {
	var b strings.Builder
	b.WriteString("| flag, key in lockstep.yaml | variable | default | what |\n|---|---|---|---|\n")
	for _, s := range settings {
		shown := s.shown
		if shown == "" {
			shown = fmt.Sprint(s.value)
		}
		fmt.Fprintf(&b, "| `--%s` | `%s%s` | %s | %s |\n", s.name, EnvPrefix,
			strings.ToUpper(strings.ReplaceAll(s.name, "-", "_")), shown, strings.ReplaceAll(s.usage, "`", ""))
	}
	return b.String()
}
