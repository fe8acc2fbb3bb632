// Package config reads and checks Lockstep's settings. A flag takes precedence over a LOCKSTEP_*
// variable, a variable over lockstep.yaml, and the file over the default. The table in settings.go
// lists every setting; docs/configuration.md is generated from it.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/egress"
	"lockstep/internal/git/wire"
	"lockstep/internal/redisx"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "lockstep.yaml"

// Config holds every setting, checked. The table in settings.go documents each.
type Config struct {
	Unknown []UnknownVariable // LOCKSTEP_ variables that set nothing

	Redis             string `setting:"redis"`
	RedisPasswordFile string `setting:"redis-password-file"`
	Prefix            string `setting:"prefix"`
	Cell              string `setting:"cell"`

	LogLevel  string `setting:"log-level"`
	LogFormat string `setting:"log-format"`

	Root        string        `setting:"root"`
	Credentials string        `setting:"credentials"`
	Worker      string        `setting:"worker"`
	Slots       int           `setting:"slots"`
	Lease       time.Duration `setting:"lease"`
	LockWait    time.Duration `setting:"lock-wait"`
	MaxAttempts int           `setting:"max-attempts"`
	TreeGrace   time.Duration `setting:"tree-grace"`

	OutsideLinks string   `setting:"outside-links"`
	LimitItems   []string `setting:"limits"`
	Limits       Limits   // LimitItems, parsed

	Hosts        []string `setting:"hosts"`
	RewriteItems []string `setting:"rewrite"`
	Proxy        string   `setting:"proxy"`
	CAFile       string   `setting:"ca-file"`
	KnownHosts   string   `setting:"known-hosts"`
	HostRequests []string `setting:"host-requests"`
	TimeoutItems []string `setting:"host-timeouts"`

	HostTimeouts map[string]wire.Timeouts // TimeoutItems, parsed
	Rewrites     egress.Rewrites          // RewriteItems, parsed

	Roles        []string      `setting:"roles"`
	CellReader   string        `setting:"cell-reader"`
	PollEvery    time.Duration `setting:"poll-every"`
	Listen       string        `setting:"listen"`
	AdminListen  string        `setting:"admin-listen"`
	APITokenFile string        `setting:"api-token-file"`
	Grace        time.Duration `setting:"grace"`
	NotifyHosts  []string      `setting:"notify-hosts"`
	ExecItems    []string      `setting:"exec"`
	ExecTimeout  time.Duration `setting:"exec-timeout"`

	AdminHeader    string   `setting:"admin-header"`
	TrustedProxies []string `setting:"trusted-proxies"`

	Hooks       string        `setting:"hooks"`
	Spool       string        `setting:"spool"`
	ResultsKeep time.Duration `setting:"results-keep"`

	admin    Admin                   // parsed admin-header
	proxies  []netip.Prefix          // parsed trusted-proxies
	apiToken *atomic.Pointer[string] // as last read; copies of the Config share it
	hasHooks bool                    // webhook sources are configured
	commands map[string][]string     // parsed exec

	usualRequests int            // parsed host-requests
	hostRequests  map[string]int // by host
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
	if c.RedisPasswordFile != "" {
		if _, err := c.redisPassword(); err != nil {
			return Named(err)
		}
	}
	token, origin := Variable(environ, EnvPrefix+"API_TOKEN"), EnvPrefix+"API_TOKEN"
	if c.APITokenFile != "" {
		origin = "api-token-file"
		if token, err = disk.ReadSecret(c.APITokenFile); err != nil {
			return Named(fmt.Errorf("api-token-file: %w", err))
		}
	}
	if token != "" && len(token) < minToken {
		return Named(fmt.Errorf("%s: shorter than %d bytes, so it could be guessed; create a token with: "+
			"openssl rand -hex 32", origin, minToken))
	}
	c.apiToken = &atomic.Pointer[string]{}
	c.apiToken.Store(&token)
	c.hasHooks = c.Hooks != "" || slices.ContainsFunc(environ, func(pair string) bool {
		return strings.HasPrefix(pair, EnvPrefix+"HOOK_")
	})
	if c.Redis != "" {
		if _, err := c.RedisServer(); err != nil {
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
		return fmt.Errorf("lock-wait %v is shorter than lease %v: a crashed holder would time out every waiter; "+
			"raise lock-wait or lower lease", c.LockWait, c.Lease)
	case !slices.Contains(outsideLinks, c.OutsideLinks):
		return fmt.Errorf("outside-links %q: want %s", c.OutsideLinks, strings.Join(outsideLinks, ", "))
	}
	var err error
	if c.usualRequests, c.hostRequests, err = parseHostRequests(separate(c.HostRequests)); err != nil {
		return err
	}
	if c.HostTimeouts, err = parseHostTimeouts(separate(c.TimeoutItems)); err != nil {
		return err
	}
	if c.Rewrites, err = parseRewrites(separate(c.RewriteItems)); err != nil {
		return err
	}
	if c.Limits, err = parseLimits(separate(c.LimitItems)); err != nil {
		return err
	}
	return cmp.Or(
		atLeast("max-attempts", c.MaxAttempts, 1, "at least 1"),
		atLeast("tree-grace", c.TreeGrace, 0, "0s or more"),
	)
}

// atLeast returns an error that says what a setting should be if its value is too low.
func atLeast[T cmp.Ordered](name string, value, least T, want string) error {
	if value < least {
		return fmt.Errorf("%s %v: want %s", name, value, want)
	}
	return nil
}

var outsideLinks = []string{"keep", "skip", "refuse"}

func (c *Config) checkServe() error {
	c.Roles, c.NotifyHosts = separate(c.Roles), separate(c.NotifyHosts)
	c.TrustedProxies = separate(c.TrustedProxies)
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
		atLeast("results-keep", c.ResultsKeep, time.Minute, "at least 1m"),
		atLeast("exec-timeout", c.ExecTimeout, time.Second, "at least 1s"),
	)
	if c.PollEvery != 0 { // never
		err = cmp.Or(err, atLeast("poll-every", c.PollEvery, time.Second, "0s or at least 1s"))
	}
	if err != nil {
		return err
	}
	if err := c.checkProxies(); err != nil {
		return err
	}
	if c.commands, err = parseCommands(c.ExecItems); err != nil {
		return err
	}
	if err := errors.Join(CheckAddress("listen", c.Listen), CheckAddress("admin-listen", c.AdminListen)); err != nil {
		return err
	}
	// Webhooks are authenticated by their signatures; without a token the API accepts no changes from other machines.
	open := c.APIToken() == "" && !c.hasHooks && !loopback(c.Listen)
	if c.Listen != "" && slices.Contains(c.Roles, RoleReceiver) && open {
		return fmt.Errorf("listen %s: other machines can reach the receiver and no API token is set; "+
			"set api-token-file or LOCKSTEP_API_TOKEN, or listen on 127.0.0.1", c.Listen)
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

// RedisServer returns the configured Redis, whose password file is read for each new connection. Redis must not be empty.
func (c *Config) RedisServer() (redisx.Server, error) {
	if c.RedisPasswordFile == "" {
		return redisx.Parse(c.Redis, nil)
	}
	return redisx.Parse(c.Redis, c.redisPassword)
}

func (c *Config) redisPassword() (string, error) {
	password, err := disk.ReadSecret(c.RedisPasswordFile)
	if err != nil {
		return "", fmt.Errorf("redis-password-file: %w", err)
	}
	return password, nil
}

// APIToken returns the bearer token of the HTTP API, or "" if there is none. It reads the file of the token again. While
// that has none that is valid, as when it is being replaced, the last one remains.
func (c *Config) APIToken() string {
	if c.apiToken == nil {
		return ""
	}
	if token, err := disk.ReadSecret(c.APITokenFile); err == nil && len(token) >= minToken {
		c.apiToken.Store(&token)
	}
	return *c.apiToken.Load()
}

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
	if err != nil {
		return false
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password") // of the master, in the URL of Sentinels
}

// CheckAddress returns an error if address is not host:port. An empty address is valid and disables listening.
func CheckAddress(name, address string) error {
	if address == "" {
		return nil
	}
	invalid := fmt.Errorf("%s %q: want host:port, as in 127.0.0.1:8080", name, address)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return invalid
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return invalid
	}
	return nil
}

func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && egress.IsLocal(host)
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
