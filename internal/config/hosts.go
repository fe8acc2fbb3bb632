package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// usualRequests is the maximum number of requests in flight to a host if host-requests has none.
const usualRequests = 16

// RequestsPerHost returns the setting host-requests: the usual maximum, and that of single hosts.
func (c *Config) RequestsPerHost() (usual int, single map[string]int) {
	return c.usualRequests, c.hostRequests
}

// parseHostRequests parses a number and pairs such as git.example.org:8443=4, all optional. A host has no
// scheme. A port that is the default of HTTP, HTTPS or SSH stands for that host without a port too, since a
// URL may omit it.
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
		host := strings.ToLower(text)
		names := []string{host}
		if bare, port, err := net.SplitHostPort(host); err == nil && slices.Contains([]string{"443", "80", "22"}, port) {
			names = append(names, bare)
		}
		for _, name := range names {
			if before, twice := given[name]; twice {
				return 0, nil, fmt.Errorf("host-requests: %s and %s name the same host; remove one", before, text)
			}
			single[name], given[name] = n, text
		}
	}
	return cmp.Or(usual, usualRequests), single, nil
}
