package config

import (
	"fmt"
	"strconv"
	"strings"
)

// RequestsPerHost returns the setting host-limits by host.
func (c *Config) RequestsPerHost() map[string]int { return c.hostLimits }

// parseHostLimits parses pairs such as git.example.org:8443=4. A host has no scheme, and its port only if that is not the
// default.
func parseHostLimits(pairs []string) (map[string]int, error) {
	limits := make(map[string]int, len(pairs))
	for _, pair := range pairs {
		host, number, _ := strings.Cut(pair, "=")
		n, err := strconv.Atoi(number)
		if host == "" || strings.ContainsAny(host, "/@ ") || err != nil || n < 1 {
			return nil, fmt.Errorf("host-limits %q: want a host and its maximum of requests, such as github.com=32", pair)
		}
		host = strings.ToLower(host)
		if _, twice := limits[host]; twice {
			return nil, fmt.Errorf("host-limits: %s is given twice", host)
		}
		limits[host] = n
	}
	return limits, nil
}
