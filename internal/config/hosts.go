package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// RequestsPerHost returns the setting host-limits by host.
func (c *Config) RequestsPerHost() map[string]int { return c.hostLimits }

// parseHostLimits parses pairs such as git.example.org:8443=4. A host has no scheme. A port that is the default of HTTP,
// HTTPS or SSH stands for that host without a port too, since a URL may omit it.
func parseHostLimits(pairs []string) (map[string]int, error) {
	limits, given := make(map[string]int, len(pairs)), make(map[string]string, len(pairs))
	for _, pair := range pairs {
		text, number, _ := strings.Cut(pair, "=")
		n, err := strconv.Atoi(number)
		if text == "" || strings.ContainsAny(text, "/@ ") || err != nil || n < 1 {
			return nil, fmt.Errorf("host-limits %q: want a host and its maximum of requests, such as github.com=32", pair)
		}
		host := strings.ToLower(text)
		names := []string{host}
		if bare, port, err := net.SplitHostPort(host); err == nil && slices.Contains([]string{"443", "80", "22"}, port) {
			names = append(names, bare)
		}
		for _, name := range names {
			if before, twice := given[name]; twice {
				return nil, fmt.Errorf("host-limits: %s and %s name the same host; remove one", before, text)
			}
			limits[name], given[name] = n, text
		}
	}
	return limits, nil
}
