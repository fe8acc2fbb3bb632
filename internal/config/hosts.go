package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/egress"
	"lockstep/internal/git/wire"
)

// usualRequests is the maximum number of requests in flight to a host if host-requests has none.
const usualRequests = 16

// RequestsPerHost returns the setting host-requests: the usual maximum, and that of single hosts.
func (c *Config) RequestsPerHost() (usual int, single map[string]int) {
	return c.usualRequests, c.hostRequests
}

// hostNames returns the names of a host, as [wire.Limiter] has them. It has no scheme. A port that is the default of
// HTTP, HTTPS or SSH stands for that host without a port too, since a URL may omit it.
func hostNames(text string) []string {
	host := strings.ToLower(text)
	if bare, port, err := net.SplitHostPort(host); err == nil && slices.Contains([]string{"443", "80", "22"}, port) {
		return []string{host, bare}
	}
	return []string{host}
}

// parseRewrites parses pairs of URL prefixes. Each has to be one of remotes.
func parseRewrites(items []string) (egress.Rewrites, error) {
	all, err := egress.ParseRewrites(items)
	for _, pair := range all {
		for _, prefix := range pair {
			err = cmp.Or(err, events.CheckRemote(prefix+"owner/repo"))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("rewrite: %w", err)
	}
	return all, nil
}

// parseHostTimeouts parses items such as pack=5m and git.example.org:8443/pack=5m, by host; "" is any host.
func parseHostTimeouts(items []string) (map[string]wire.Timeouts, error) {
	timeouts := map[string]wire.Timeouts{}
	for _, item := range items {
		name, text, _ := strings.Cut(item, "=")
		host, kind, isSingle := strings.Cut(name, "/")
		if !isSingle {
			host, kind = "", name
		}
		limit, err := time.ParseDuration(text)
		for _, host := range hostNames(host) {
			of := timeouts[host]
			field := map[string]*time.Duration{"refs": &of.Refs, "pack": &of.Pack, "silence": &of.Silence}[kind]
			if field == nil || err != nil || limit < time.Second || isSingle && (host == "" || strings.ContainsAny(host, "@ ")) {
				return nil, fmt.Errorf("host-timeouts %q: want refs, pack or silence and a duration of at least 1s, "+
					"such as pack=5m, or the same for one host, such as git.example.org/pack=5m", item)
			}
			if *field != 0 {
				return nil, fmt.Errorf("host-timeouts %q: %s is given twice; remove one", item, name)
			}
			*field = limit
			timeouts[host] = of
		}
	}
	return timeouts, nil
}

// parseHostRequests parses a number and pairs such as git.example.org:8443=4, all optional.
func parseHostRequests(items []string) (usual int, single map[string]int, err error) {
	single, given := make(map[string]int, len(items)), make(map[string]string, len(items))
	for _, item := range items {
		text, number, isPair := strings.Cut(item, "=")
		if !isPair {
			text, number = "", item
		}
		n, err := strconv.Atoi(number)
		switch {
		case err != nil || n < 1 || isPair && (text == "" || strings.ContainsAny(text, "/@ ")):
			return 0, nil, fmt.Errorf("host-requests %q: want a maximum of at least 1, or a host and its maximum, "+
				"such as github.com=32", item)
		case !isPair && usual != 0:
			return 0, nil, fmt.Errorf("host-requests: %d and %d are both for any host; remove one", usual, n)
		case !isPair:
			usual = n
			continue
		}
		for _, name := range hostNames(text) {
			if before, twice := given[name]; twice {
				return 0, nil, fmt.Errorf("host-requests: %s and %s name the same host; remove one", before, text)
			}
			single[name], given[name] = n, text
		}
	}
	return cmp.Or(usual, usualRequests), single, nil
}
