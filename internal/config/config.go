// Package config reads and checks Lockstep's settings. A flag takes precedence over a LOCKSTEP_*
// variable, a variable over lockstep.yaml, and the file over the default. The table in settings.go
// lists every setting; docs/configuration.md is generated from it.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"lockstep/events"
	"lockstep/internal/redisx"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "lockstep.yaml"

// Config holds every setting, checked. The table in settings.go documents each.
type Config struct {
	Unknown []UnknownVariable `koanf:"-"` // LOCKSTEP_ variables that set nothing

	Redis             string `koanf:"redis"`
	RedisPasswordFile string `koanf:"redis-password-file"`
	Prefix            string `koanf:"prefix"`
	Cell              string `koanf:"cell"`
	CellsPrefix       string `koanf:"cells-prefix"`

	LogLevel  string `koanf:"log-level"`
	LogFormat string `koanf:"log-format"`

	Root        string        `koanf:"root"`
	Credentials string        `koanf:"credentials"`
	Worker      string        `koanf:"worker"`
	Slots       int           `koanf:"slots"`
	Lease       time.Duration `koanf:"lease"`
	LockWait    time.Duration `koanf:"lock-wait"`
	MaxAttempts int           `koanf:"max-attempts"`
	RetryBase   time.Duration `koanf:"retry-base"`
	RetryMax    time.Duration `koanf:"retry-max"`
	MaxAge      time.Duration `koanf:"max-age"`
	TreeGrace   time.Duration `koanf:"tree-grace"`
	TreeKeep    time.Duration `koanf:"tree-keep"`

	TreePrepare      time.Duration `koanf:"tree-prepare"`
	OutsideLinks     string        `koanf:"outside-links"`
	MaxTreeFiles     int           `koanf:"max-tree-files"`
	MaxTreeBytes     int64         `koanf:"max-tree-bytes"`
	MaxFileBytes     int64         `koanf:"max-file-bytes"`
	MaxPackBytes     int64         `koanf:"max-pack-bytes"`
	MaxInflatedBytes int64         `koanf:"max-inflated-bytes"`

	Adopt          bool          `koanf:"adopt"`
	MaxRepoBytes   int64         `koanf:"max-repo-bytes"`
	MaxVolumeBytes int64         `koanf:"max-volume-bytes"`
	MinFreeBytes   int64         `koanf:"min-free-bytes"`
	GCEvery        time.Duration `koanf:"gc-every"`

	Hosts        []string      `koanf:"hosts"`
	Proxy        string        `koanf:"proxy"`
	CAFile       string        `koanf:"ca-file"`
	KnownHosts   string        `koanf:"known-hosts"`
	FetchTimeout time.Duration `koanf:"fetch-timeout"`

	HostRequests int      `koanf:"host-requests"`
	HostLimits   []string `koanf:"host-limits"`

	CircuitFailures int           `koanf:"circuit-failures"`
	CircuitOpen     time.Duration `koanf:"circuit-open"`

	Roles          []string      `koanf:"roles"`
	CellReader     string        `koanf:"cell-reader"`
	MoveRate       int           `koanf:"move-rate"`
	PollEvery      time.Duration `koanf:"poll-every"`
	ReconcileEvery time.Duration `koanf:"reconcile-every"`
	Listen         string        `koanf:"listen"`
	AdminListen    string        `koanf:"admin-listen"`
	APITokenFile   string        `koanf:"api-token-file"`
	Grace          time.Duration `koanf:"grace"`
	NotifyHosts    []string      `koanf:"notify-hosts"`

	Dashboard      bool     `koanf:"dashboard"`
	AdminHeader    string   `koanf:"admin-header"`
	AdminUsers     []string `koanf:"admin-users"`
	TrustedProxies []string `koanf:"trusted-proxies"`

	Hooks          string        `koanf:"hooks"`
	Spool          string        `koanf:"spool"`
	SpoolMaxBytes  int64         `koanf:"spool-max-bytes"`
	DeliveriesKeep time.Duration `koanf:"deliveries-keep"`

	StreamMaxLength int           `koanf:"stream-max-length"`
	ResultsKeep     time.Duration `koanf:"results-keep"`
	DeadMaxAge      time.Duration `koanf:"dead-max-age"`
	DeadMaxLength   int           `koanf:"dead-max-length"`
	DeadMaxBytes    int64         `koanf:"dead-max-bytes"`

	proxies       []netip.Prefix // parsed trusted-proxies
	redisPassword string
	apiToken      string
	hasHooks      bool // webhook sources are configured
	hostLimits    map[string]int
}

// Load reads and checks the settings. flags may be nil. If path is empty, Load reads [DefaultFile] if it
// exists. environ has the form of [os.Environ].
func Load(flags *pflag.FlagSet, path string, environ []string) (Config, error) {
	k := koanf.New("\x00") // settings are not nested, so no name is split at a dot
	if err := k.Load(confmap.Provider(defaults(), ""), nil); err != nil {
		return Config{}, fmt.Errorf("defaults: %w", err)
	}
	if err := loadFile(k, path); err != nil {
		return Config{}, err
	}
	variables := env.Provider("\x00", env.Opt{Prefix: EnvPrefix, TransformFunc: setting, EnvironFunc: func() []string { return environ }})
	if err := checkVariables(environ); err != nil {
		return Config{}, err
	}
	if err := k.Load(variables, nil); err != nil {
		return Config{}, fmt.Errorf("environment: %w", err)
	}
	if flags != nil {
		values := posflag.ProviderWithFlag(flags, "\x00", k, func(f *pflag.Flag) (string, any) {
			if size, ok := f.Value.(*Size); ok {
				return f.Name, *size
			}
			return f.Name, posflag.FlagVal(flags, f)
		})
		if err := k.Load(values, nil); err != nil {
			return Config{}, fmt.Errorf("flags: %w", err)
		}
		for name, instead := range map[string]string{"redis": "--redis-password-file or LOCKSTEP_REDIS", "proxy": "LOCKSTEP_PROXY or the file"} {
			if f := flags.Lookup(name); f != nil && f.Changed && hasPassword(f.Value.String()) {
				return Config{}, fmt.Errorf("--%s: every user of this machine can see a password in an argument; use %s", name, instead)
			}
		}
	}
	c := Config{Unknown: unknownVariables(environ)}
	if err := k.Unmarshal("", &c); err != nil {
		return Config{}, fmt.Errorf("settings: %w", err)
	}
	return c, c.check(environ)
}

func loadFile(k *koanf.Koanf, path string) error {
	named := path != ""
	if !named {
		path = DefaultFile
	}
	fromFile := koanf.New("\x00")
	err := fromFile.Load(file.Provider(path), yaml.Parser())
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return fmt.Errorf("config file %s: %w", path, err)
	}
	for key, value := range fromFile.All() {
		s, ok := find(key)
		switch {
		case !ok:
			return fmt.Errorf("config file %s: unknown setting %q; see lockstep serve --help", path, strings.ReplaceAll(key, "\x00", "."))
		case value == nil: // "root:" without a value
			fromFile.Delete(key)
		default:
			if err := s.fits(value); err != nil {
				return fmt.Errorf("config file %s: %w", path, err)
			}
			if err := fromFile.Set(key, s.typed(value)); err != nil {
				return fmt.Errorf("config file %s: %w", path, err)
			}
		}
	}
	return k.Merge(fromFile)
}

// setting returns the setting that a variable sets, or "" if the variable is empty or unknown. An
// unknown variable is not an error, unlike an unknown key in a file: see Config.Unknown.
func setting(variable, value string) (string, any) {
	name := settingName(strings.TrimPrefix(variable, EnvPrefix))
	s, ok := find(name)
	if !ok || value == "" {
		return "", nil
	}
	return name, s.typed(value)
}

// typed returns a size as such, and any other value of a file or variable as it is.
func (s entry) typed(value any) any {
	if _, ok := s.value.(Size); ok {
		if size, err := ParseSize(fmt.Sprint(value)); err == nil {
			return size
		}
	}
	return value
}

// minToken is the minimum length of the API token, in bytes.
const minToken = 16

func (c *Config) check(environ []string) error {
	if _, err := events.ParseNamespace(c.Prefix); err != nil {
		return Named(err)
	}
	if err := c.checkCells(); err != nil {
		return Named(err)
	}
	var err error
	if c.redisPassword, err = readSecret(c.RedisPasswordFile); err != nil {
		return Named(fmt.Errorf("redis-password-file: %w", err))
	}
	if c.apiToken, err = readSecret(c.APITokenFile); err != nil {
		return Named(fmt.Errorf("api-token-file: %w", err))
	}
	origin := "api-token-file"
	if c.apiToken == "" {
		c.apiToken, origin = Variable(environ, EnvPrefix+"API_TOKEN"), EnvPrefix+"API_TOKEN"
	}
	if c.apiToken != "" && len(c.apiToken) < minToken {
		return Named(fmt.Errorf("%s: shorter than %d bytes, so it could be guessed; create a token with: openssl rand -hex 32", origin, minToken))
	}
	c.hasHooks = c.Hooks != "" || slices.ContainsFunc(environ, func(pair string) bool { return strings.HasPrefix(pair, EnvPrefix+"HOOK_") })
	if c.Redis != "" {
		if _, err := redisx.Parse(c.Redis, c.redisPassword); err != nil {
			return Named(err)
		}
	}
	return errors.Join(Named(c.checkWork()), Named(c.checkServe()))
}

func (c *Config) checkWork() error {
	c.Hosts = separate(c.Hosts)
	switch {
	case c.Root == "":
		return errors.New("root: want a folder")
	case c.Slots < 1 || c.Slots > 4096:
		return fmt.Errorf("slots %d: want 1 to 4096", c.Slots)
	case c.Lease < time.Second || c.Lease > 10*time.Minute:
		return fmt.Errorf("lease %v: want 1s to 10m", c.Lease)
	case c.LockWait < c.Lease:
		return fmt.Errorf("lock-wait %v is shorter than lease %v: a crashed holder would time out every waiter; raise lock-wait or lower lease", c.LockWait, c.Lease)
	case c.RetryBase <= 0 || c.RetryMax < c.RetryBase:
		return fmt.Errorf("retry-base %v, retry-max %v: want 0 < retry-base <= retry-max", c.RetryBase, c.RetryMax)
	case c.MaxAge <= 0:
		return fmt.Errorf("max-age %v: want a positive duration", c.MaxAge)
	case !slices.Contains(outsideLinks, c.OutsideLinks):
		return fmt.Errorf("outside-links %q: want %s", c.OutsideLinks, strings.Join(outsideLinks, ", "))
	}
	var err error
	if c.hostLimits, err = parseHostLimits(separate(c.HostLimits)); err != nil {
		return err
	}
	return cmp.Or(
		atLeast("host-requests", c.HostRequests, 1, "at least 1"),
		atLeast("max-attempts", c.MaxAttempts, 1, "at least 1"),
		atLeast("circuit-failures", c.CircuitFailures, 1, "at least 1"),
		atLeast("circuit-open", c.CircuitOpen, time.Second, "at least 1s"),
		atLeast("max-tree-bytes", Size(c.MaxTreeBytes), 1<<20, "at least 1MiB"),
		atLeast("max-file-bytes", Size(c.MaxFileBytes), 1<<20, "at least 1MiB"),
		atLeast("max-pack-bytes", Size(c.MaxPackBytes), 1<<20, "at least 1MiB"),
		atLeast("max-inflated-bytes", Size(c.MaxInflatedBytes), 1<<20, "at least 1MiB"),
		atLeast("max-repo-bytes", Size(c.MaxRepoBytes), 1<<20, "at least 1MiB"),
		atLeast("max-tree-files", c.MaxTreeFiles, 1, "at least 1"),
		atLeast("fetch-timeout", c.FetchTimeout, time.Second, "at least 1s"),
		atLeast("tree-grace", c.TreeGrace, 0, "0s or more"),
		atLeast("tree-keep", c.TreeKeep, 0, "0s or more"),
		atLeast("tree-prepare", c.TreePrepare, 0, "0s or more"),
		atLeast("max-volume-bytes", Size(c.MaxVolumeBytes), 0, "0 or more"),
		atLeast("min-free-bytes", Size(c.MinFreeBytes), 0, "0 or more"),
		zeroOrSecond("gc-every", c.GCEvery),
		atLeast("move-rate", c.MoveRate, 1, "1 or more"),
	)
}

// atLeast returns an error that says what a setting should be if its value is too low.
func atLeast[T cmp.Ordered](name string, value, least T, want string) error {
	if value < least {
		return fmt.Errorf("%s %v: want %s", name, value, want)
	}
	return nil
}

// zeroOrSecond returns an error unless an interval is 0, which means never, or at least a second.
func zeroOrSecond(name string, interval time.Duration) error {
	if interval == 0 {
		return nil
	}
	return atLeast(name, interval, time.Second, "0s or at least 1s")
}

var outsideLinks = []string{"keep", "skip", "refuse"}

func (c *Config) checkServe() error {
	c.Roles, c.NotifyHosts = separate(c.Roles), separate(c.NotifyHosts)
	c.AdminUsers, c.TrustedProxies = separate(c.AdminUsers), separate(c.TrustedProxies)
	if len(c.Roles) == 0 {
		return fmt.Errorf("roles: want at least one of %s", strings.Join(Roles, ", "))
	}
	for _, role := range c.Roles {
		if !slices.Contains(Roles, role) {
			return fmt.Errorf("roles: unknown role %q: want %s", role, strings.Join(Roles, ", "))
		}
	}
	err := cmp.Or(
		atLeast("grace", c.Grace, 0, "0s or more"),
		zeroOrSecond("poll-every", c.PollEvery),
		zeroOrSecond("reconcile-every", c.ReconcileEvery),
		atLeast("spool-max-bytes", Size(c.SpoolMaxBytes), 1<<20, "at least 1MiB"),
		atLeast("deliveries-keep", c.DeliveriesKeep, time.Hour, "at least 1h"),
		atLeast("stream-max-length", c.StreamMaxLength, 1000, "at least 1000"),
		atLeast("results-keep", c.ResultsKeep, time.Minute, "at least 1m"),
		atLeast("dead-max-age", c.DeadMaxAge, time.Hour, "at least 1h"),
		atLeast("dead-max-bytes", Size(c.DeadMaxBytes), 1<<20, "at least 1MiB"),
	)
	if err != nil {
		return err
	}
	if c.DeadMaxLength < 1 || c.DeadMaxLength > 90_000 { // dropped letters are counted only up to 100,000
		return fmt.Errorf("dead-max-length %d: want 1 to 90000", c.DeadMaxLength)
	}
	if err := c.checkProxies(); err != nil {
		return err
	}
	if err := errors.Join(CheckAddress("listen", c.Listen), CheckAddress("admin-listen", c.AdminListen)); err != nil {
		return err
	}
	// Webhooks are authenticated by their signatures; without a token the API accepts no changes from other machines.
	if c.Listen != "" && slices.Contains(c.Roles, RoleReceiver) && c.apiToken == "" && !c.hasHooks && !loopback(c.Listen) {
		return fmt.Errorf("listen %s: other machines can reach the receiver and no API token is set; set api-token-file or LOCKSTEP_API_TOKEN, or listen on 127.0.0.1", c.Listen)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); c.LogLevel != "" && err != nil {
		return fmt.Errorf("log-level %q: want debug, info, warn or error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("log-format %q: want text or json", c.LogFormat)
	}
	return nil
}

// separate splits list elements at commas and spaces: a variable is a single string, "receiver,worker".
func separate(list []string) []string {
	return strings.FieldsFunc(strings.Join(list, ","), func(r rune) bool { return r == ',' || r == ' ' })
}

// Namespace returns the checked prefix.
func (c *Config) Namespace() events.Namespace { return events.Namespace(c.Prefix) }

// RedisServer returns the configured Redis. Redis must not be empty.
func (c *Config) RedisServer() (redisx.Server, error) { return redisx.Parse(c.Redis, c.redisPassword) }

// APIToken returns the bearer token of the HTTP API, or "" if there is none.
func (c *Config) APIToken() string { return c.apiToken }

// Has reports whether the process has a role.
func (c *Config) Has(role string) bool { return slices.Contains(c.Roles, role) }

// HasOnly reports whether the process has none but the given roles.
func (c *Config) HasOnly(roles ...string) bool {
	return !slices.ContainsFunc(c.Roles, func(role string) bool { return !slices.Contains(roles, role) })
}

func hasPassword(redisURL string) bool {
	if !strings.Contains(redisURL, "://") {
		redisURL = "redis://" + redisURL // as redisx reads it
	}
	u, err := url.Parse(redisURL)
	if err != nil || u.User == nil {
		return false
	}
	_, has := u.User.Password()
	return has
}

// CheckAddress returns an error if address is not host:port. An empty address is valid and disables listening.
func CheckAddress(name, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%s %q: want host:port, as in 127.0.0.1:8080", name, address)
	}
	return nil
}

func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func readSecret(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return secret, nil
}

// Variable returns the value of an environment variable, or "" if it is not set. environ has the form of [os.Environ].
func Variable(environ []string, name string) string {
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}
