package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/term"
)

const healthcheckTimeout = 3 * time.Second

func newHealthcheckCommand(std term.Streams) *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Check whether the process on this machine is ready",
		Long: "Request /readyz from the process with the same settings, at its listen address or else its\n" +
			"admin-listen address, and print one line. Meant for containers without a shell. Exit code 1 if the\n" +
			"process is not ready or does not answer within 3 s.",
		Example: "  lockstep healthcheck\n" +
			"  lockstep healthcheck --listen :8080\n" +
			"  lockstep healthcheck --url http://127.0.0.1:6060/livez",
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := healthTarget(cmd, std, address)
			if err != nil {
				return err
			}
			line, err := askHealth(cmd.Context(), target)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(std.Stdout, line)
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Probing)
	cmd.Flags().StringVar(&address, "url", "", "`URL` to request instead")
	return cmd
}

// healthTarget returns the URL to request.
func healthTarget(cmd *cobra.Command, std term.Streams, address string) (string, error) {
	if address != "" {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return "", term.UsageError(errors.New("--url: want http://host:port/path"))
		}
		return u.String(), nil
	}
	cfg, err := settings(cmd, std)
	if err != nil {
		return "", err
	}
	for _, listen := range []string{cfg.Listen, cfg.AdminListen} {
		if listen != "" {
			return readyURL(listen)
		}
	}
	return "", term.UsageError(errors.New("no address: set --listen or --admin-listen as for the process, or --url"))
}

// readyURL returns the /readyz URL for a listen address.
func readyURL(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case err != nil:
		return "", err // not expected: config.Load has checked it
	case port == "0" || port == "":
		return "", term.UsageError(fmt.Errorf("listen %s: the port is chosen at the start; set it with --url", listen))
	}
	return localURL(host, port, "/readyz").String(), nil
}

// localURL returns the URL at which a process on this machine answers that listens on the host. It uses the
// loopback interface if the process listens on all.
func localURL(host, port, path string) *url.URL {
	switch ip := net.ParseIP(host); {
	case host == "" || ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6unspecified):
		host = "::1"
	}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: path}
}

// askHealth returns the first line of a 200 response; for other responses the line is part of the error. It
// uses no proxy and follows no redirects, because the check is for one process.
func askHealth(ctx context.Context, target string) (string, error) {
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		Timeout:       healthcheckTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return "", term.UsageError(fmt.Errorf("--url: %w", err))
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("unhealthy: %w; is the process running and listening there?", err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(http.MaxBytesReader(nil, resp.Body, 4<<10))
	lines.Scan()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("unhealthy: %s: %s", resp.Status, lines.Text())
	}
	return lines.Text(), nil
}
