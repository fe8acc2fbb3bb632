package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/egress"
	"lockstep/internal/forge"
	"lockstep/internal/term"
)

const hookTimeout = 30 * time.Second

func newHookCommand(std term.Streams) *cobra.Command {
	return newGroup("hook", "Test webhooks", "", newHookTestCommand(std))
}

// testDelivery begins the delivery IDs of tests.
const testDelivery = "lockstep-test-"

// hookFlags are the flags of hook test.
type hookFlags struct{ forge, secretFile, remote, ref string }

func newHookTestCommand(std term.Streams) *cobra.Command {
	var flags hookFlags
	var out term.Output
	cmd := withFlags(&cobra.Command{
		Use:   "test SOURCE|URL",
		Short: "Send a signed delivery to a receiver and print its answer",
		Long: "Send a delivery as a forge sends it, signed with the secret of a webhook source, and print what the\n" +
			"receiver answers. It is a ping, which changes nothing, or with --remote a push to that repository,\n" +
			"without its commit.\n" +
			"\n" +
			"SOURCE is a source in the settings of this machine; the delivery goes to /hooks/SOURCE at the\n" +
			"address in --listen. A URL is that of a receiver, as the forge has it; its source is the last part\n" +
			"of the path. If that source is not in the settings, --forge and --secret-file describe it. Exit code\n" +
			"1 if the answer is not 2xx.",
		Example: "  lockstep hook test github --hooks hooks --listen 127.0.0.1:8080\n" +
			"  lockstep hook test https://lockstep.example.org/hooks/github --forge github --secret-file secret\n" +
			"  lockstep hook test github --remote https://git.example.com/acme/widgets.git --ref main --hooks hooks " +
			"--listen 127.0.0.1:8080",
		Args: term.WrongUse(term.OneArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			to, err := receiverURL(args[0], cfg.Listen)
			if err != nil {
				return term.UsageError(err)
			}
			src, err := flags.source(path.Base(to.Path), cfg, std)
			if err != nil {
				return term.UsageError(err)
			}
			header, body, err := flags.compose(src)
			if err != nil {
				return term.UsageError(err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), hookTimeout)
			defer cancel()
			answer, err := postHook(ctx, cfg, http.MethodPost, to, header, body)
			if err != nil {
				return fmt.Errorf("%s: %w", to.Redacted(), err)
			}
			if err := out.Show(std, answer, answer.Table); err != nil {
				return err
			}
			return hookError(answer, src)
		},
	}, config.Probing|config.Receiving, &out)
	cmd.Flags().StringVar(&flags.forge, "forge", "", "`kind` of forge, for a source that is not in the settings: "+
		"github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure or standard")
	cmd.Flags().StringVar(&flags.secretFile, "secret-file", "",
		"`file` with the secret, for a source that is not in the settings")
	cmd.Flags().StringVar(&flags.remote, "remote", "", "clone `URL` of a repository to report a push to")
	cmd.Flags().StringVar(&flags.ref, "ref", "main", "`branch or ref` of that push")
	return cmd
}

// receiverURL returns where to send the delivery.
func receiverURL(arg, listen string) (*url.URL, error) {
	if strings.Contains(arg, "://") {
		to, err := url.Parse(arg)
		if err != nil || to.Scheme != "http" && to.Scheme != "https" || to.Hostname() == "" ||
			!strings.Contains(to.Path, "/hooks/") || strings.HasSuffix(to.Path, "/") {
			return nil, errors.New("want the URL of a receiver, as in https://lockstep.example.org/hooks/github")
		}
		return to, nil
	}
	if strings.ContainsAny(arg, "/?#% ") || arg == "" {
		return nil, fmt.Errorf("%q is not the name of a webhook source", arg)
	}
	if listen == "" {
		return nil, fmt.Errorf("%s is required, or the receiver's URL instead of the source's name", config.Names("listen"))
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, err
	}
	return localURL(host, port, "/hooks/"+arg), nil
}

// source returns the source with that name in the settings, or else the one that the flags describe.
func (f hookFlags) source(name string, cfg config.Config, std term.Streams) (forge.Source, error) {
	if f.forge != "" || f.secretFile != "" {
		kind, err := forge.ParseKind(f.forge)
		if err != nil {
			return forge.Source{}, fmt.Errorf("--forge: %w", err)
		}
		if f.secretFile == "" {
			return forge.Source{Name: name, Kind: kind, Unsigned: true}, nil
		}
		secret, err := os.ReadFile(f.secretFile)
		if err != nil {
			return forge.Source{}, fmt.Errorf("--secret-file: %w", err)
		}
		if strings.TrimSpace(string(secret)) == "" {
			return forge.Source{}, errors.New("--secret-file: the file is empty")
		}
		return forge.Source{Name: name, Kind: kind, Secrets: []string{strings.TrimRight(string(secret), "\r\n")}}, nil
	}
	sources, err := forge.LoadSources(cfg.Hooks, std.Environ)
	if err != nil {
		return forge.Source{}, err
	}
	src, ok, err := sources.Get(name)
	switch {
	case err != nil:
		return forge.Source{}, err
	case !ok && len(sources.Names()) > 0:
		return forge.Source{}, fmt.Errorf("no webhook source %s, only %s; add it, or describe it with --forge and "+
			"--secret-file", name, strings.Join(sources.Names(), ", "))
	case !ok:
		return forge.Source{}, fmt.Errorf("no webhook source %s: %s names the folder of sources; "+
			"or describe it with --forge and --secret-file", name, config.Names("hooks"))
	}
	return src, nil
}

func (f hookFlags) compose(src forge.Source) (http.Header, []byte, error) {
	if f.remote != "" {
		if err := events.CheckRemote(f.remote); err != nil {
			return nil, nil, fmt.Errorf("--remote: %w", err)
		}
	}
	ref, err := events.ParseRef(f.ref)
	if err != nil || ref.IsZero() {
		return nil, nil, fmt.Errorf("--ref %s: %w", f.ref, cmp.Or(err, errors.New("want a branch or a ref")))
	}
	return forge.Compose(src, testDelivery+rand.Text(), f.remote, ref.String(), time.Now())
}

// testAnswer is the answer to a test delivery or notification.
type testAnswer struct {
	URL    string `json:"url"`
	Status int    `json:"status"`
	Answer string `json:"answer,omitempty"` // the beginning of its body
	TookMS int64  `json:"took_ms"`
}

func (a testAnswer) Table(w io.Writer) {
	fmt.Fprintf(w, "sent to\t%s\nanswered\t%s, in %d ms\n", term.Printable(a.URL),
		strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status))), a.TookMS)
	if text := strings.TrimSpace(a.Answer); text != "" {
		fmt.Fprintf(w, "with\t%s\n", term.Printable(text))
	}
}

// postHook sends a delivery. It follows no redirects, as forges lose the body then.
func postHook(
	ctx context.Context, cfg config.Config, method string, to *url.URL, header http.Header, body []byte,
) (testAnswer, error) {
	trust, err := egress.NewTrust(cfg.CAFile)
	if err != nil {
		return testAnswer{}, err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	client := http.Client{Transport: trust.Transport(transport), CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), strings.NewReader(string(body)))
	if err != nil {
		return testAnswer{}, err
	}
	req.Header = header
	req.Header.Set("User-Agent", "lockstep-hook-test")
	began := time.Now()
	resp, err := client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if err != nil {
		return testAnswer{}, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // the status decides
	return testAnswer{to.Redacted(), resp.StatusCode, string(text), time.Since(began).Milliseconds()}, nil
}

// hookError says what to do about an answer that is not 2xx.
func hookError(a testAnswer, src forge.Source) error {
	switch {
	case a.Status/100 == 2:
		return nil
	case a.Status == http.StatusUnauthorized:
		return fmt.Errorf("the receiver refused the signature: it has another secret or forge for the source %s", src.Name)
	case a.Status == http.StatusNotFound:
		return fmt.Errorf("there is no receiver with the source %s at this URL: check its path, "+
			"and that the receiver was restarted since the source was added", src.Name)
	case a.Status/100 == 3:
		return errors.New("the receiver redirects: give the forge the URL that it redirects to")
	}
	return fmt.Errorf("the receiver answered %d", a.Status)
}
