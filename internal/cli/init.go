package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// none is the answer for deployments without webhooks, and for those without a file that runs the service.
const none = "none"

// setup has the answers given to lockstep init. As JSON it has those that a second run adopts.
type setup struct {
	Redis, Listen, Forge, NotifyURL, App, Service, Image string

	dir, binary string
	url         string // of the receiver, as the forge reaches it
}

func newInitCommand(std term.Streams) *cobra.Command {
	var s setup
	var check, yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the settings and secrets of a new deployment",
		Long: "Write lockstep.yaml, new secrets that only this user can read and, with --service, a file that runs the service, and\n" +
			"print the values for the forge's webhook form. On a terminal it prompts for values that no flag sets. It changes no\n" +
			"existing file: it keeps secrets, and if another file differs, it writes nothing. All paths in lockstep.yaml are\n" +
			"relative to its folder: run lockstep there.\n\n" +
			"--check waits until a push arrives by webhook and is published, or reports at once that one was. Pushes of\n" +
			"lockstep hook test do not count. It needs the running service.",
		Example: "  lockstep init\n" +
			"  lockstep init --forge gitea --url https://lockstep.example.org --service systemd\n" +
			"  lockstep init --forge github --app docs --notify-url https://docs.example.com/hooks/lockstep --yes\n" +
			"  lockstep init --check --timeout 5m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return checkFirstPush(cmd, std, timeout)
			}
			if err := s.complete(cmd, std, yes); err != nil {
				return term.UsageError(err)
			}
			files, err := s.files()
			if err != nil {
				return term.UsageError(err)
			}
			if err := writeFiles(std.Stdout, s.dir, files); err != nil {
				return err
			}
			s.printNext(std.Stdout)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&s.dir, "dir", ".", "`folder` to write to")
	flags.StringVar(&s.Redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis, without a password")
	flags.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "`address` for HTTP: webhooks, API, dashboard")
	flags.StringVar(&s.Forge, "forge", none, "`kind` of forge that sends webhooks: github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure, standard, or none")
	flags.StringVar(&s.url, "url", "", "`URL` at which the forge reaches this service (default: http and the address)")
	flags.StringVar(&s.App, "app", "docs", "`app` to notify, for --notify-url")
	flags.StringVar(&s.NotifyURL, "notify-url", "", "`URL` of an app that gets notifications (default: none)")
	flags.StringVar(&s.Service, "service", none, "`file` that runs the service: compose, systemd or none")
	flags.StringVar(&s.Image, "image", "lockstep:local", "`image` in the Compose file")
	flags.BoolVar(&yes, "yes", false, "do not ask; use defaults for values that no flag sets")
	flags.BoolVar(&check, "check", false, "wait for the first push to arrive and be published")
	flags.DurationVar(&timeout, "timeout", 10*time.Minute, "how long --check waits")
	return cmd
}

// complete adopts the answers of an earlier run, then asks for values that no flag sets if standard input is a terminal, and checks the
// answers.
func (s *setup) complete(cmd *cobra.Command, std term.Streams, yes bool) (err error) {
	s.binary, _ = os.Executable() // only printed, and in the unit
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := s.adopt(cmd); err != nil {
		return err
	}
	prompt := term.NewPrompt(std)
	answer := func(flag, question string, value *string, check func(string) error) {
		switch {
		case err != nil:
		case prompt == nil || yes || cmd.Flags().Changed(flag):
			if err = check(*value); err != nil {
				err = fmt.Errorf("--%s: %w", flag, err)
			}
		default:
			*value, err = prompt.Ask(question, *value, check)
		}
	}
	answer("redis", "Redis URL", &s.Redis, checkRedisURL)
	answer("listen", "Address for HTTP", &s.Listen, checkListen)
	answer("forge", "Forge that sends webhooks (github, gitlab, gitea, forgejo, bitbucket-cloud, bitbucket-dc, azure, standard, none)", &s.Forge, checkForge)
	s.url = cmp.Or(s.url, "http://"+s.Listen)
	if s.Forge != none {
		answer("url", "URL at which the forge reaches this service", &s.url, checkServiceURL)
	}
	answer("notify-url", "URL of an app to notify, empty for none", &s.NotifyURL, checkNotifyURL)
	if s.NotifyURL != "" {
		answer("app", "Name of that app", &s.App, watch.CheckApp)
	}
	answer("service", "File that runs the service (compose, systemd, none)", &s.Service, checkService)
	s.url = strings.TrimRight(s.url, "/")
	return err
}

const answersComment = "# init: "

// adopt makes the answers of an earlier run, in a comment of lockstep.yaml, the defaults.
func (s *setup) adopt(cmd *cobra.Command) error {
	path := filepath.Join(s.dir, config.DefaultFile)
	text, err := os.ReadFile(path)
	if err != nil { // if it exists, it is read again before anything is written
		return nil
	}
	given := *s
	_, rest, _ := bytes.Cut(text, []byte(answersComment))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	if err := json.Unmarshal(line, s); err != nil {
		return fmt.Errorf("%s was not written by lockstep init; remove the file, or choose another folder with --dir", path)
	}
	for flag, value := range map[string][2]*string{
		"redis": {&s.Redis, &given.Redis}, "listen": {&s.Listen, &given.Listen}, "forge": {&s.Forge, &given.Forge}, "app": {&s.App, &given.App},
		"notify-url": {&s.NotifyURL, &given.NotifyURL}, "service": {&s.Service, &given.Service}, "image": {&s.Image, &given.Image},
	} {
		if cmd.Flags().Changed(flag) {
			*value[0] = *value[1]
		}
	}
	return nil
}

func checkRedisURL(text string) error {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return errors.New("the URL contains a password, which lockstep.yaml should not have; leave it out and set redis-password-file")
		}
	}
	_, err := redisx.Parse(text, "")
	return err
}

func checkListen(text string) error {
	if text == "" {
		return errors.New("want host:port, as in 127.0.0.1:8080")
	}
	return config.CheckAddress("listen", text)
}

func checkForge(text string) error {
	if _, err := forge.ParseKind(text); err != nil && text != none {
		return fmt.Errorf("%w, or none", err)
	}
	return nil
}

func checkServiceURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("want a URL such as https://lockstep.example.org")
	}
	return nil
}

func checkNotifyURL(text string) error {
	if text != "" && (checkServiceURL(text) != nil || strings.ContainsAny(text, " \n") || credential.Covers([]string{text}, text) == 0) {
		return errors.New("want a URL such as https://docs.example.com/hooks/lockstep")
	}
	return nil
}

func checkService(text string) error {
	if text != "compose" && text != "systemd" && text != none {
		return fmt.Errorf("%q: want compose, systemd or none", text)
	}
	return nil
}

// printNext prints the webhook's form and what to do next.
func (s *setup) printNext(w io.Writer) {
	if s.Forge != none {
		printWebhook(w, forge.Kind(s.Forge), s.url+"/hooks/"+s.Forge, filepath.Join("hooks", s.Forge, "secret"))
	}
	run := "lockstep"
	if _, err := exec.LookPath(run); err != nil {
		run = s.binary
	}
	folder := "  cd '" + strings.ReplaceAll(s.dir, "'", `'\''`) + "'\n"
	fmt.Fprint(w, "\nNext:\n"+folder)
	switch s.Service {
	case "compose":
		run = "docker compose exec lockstep /lockstep"
		fmt.Fprint(w, "  docker compose up --detach\n")
	case "systemd":
		fmt.Fprint(w, "  sudo cp lockstep.service /etc/systemd/system/ && sudo systemctl enable --now lockstep\n")
	default:
		fmt.Fprintf(w, "  %s serve\n\nIn a second terminal:\n%s", run, folder)
	}
	fmt.Fprintf(w, "  %s watch add URL --app %s", run, s.App)
	if s.NotifyURL != "" {
		fmt.Fprintf(w, " --notify-url %s --notify-secret %s", s.NotifyURL, s.App)
	}
	fmt.Fprintln(w)
	if s.Forge != none {
		fmt.Fprintf(w, "  %s hook test %s\n  %s init --check\n", run, s.Forge, run)
	}
}

// printWebhook prints the forge's form for a webhook.
func printWebhook(w io.Writer, kind forge.Kind, to, secret string) {
	form := forge.FormOf(kind)
	rows := fmt.Sprintf("  %s\t%s\n", cmp.Or(form.URL, "URL"), to)
	if form.ContentType != "" {
		rows += fmt.Sprintf("  Content type\t%s\n", form.ContentType)
	}
	rows += fmt.Sprintf("  %s\tthe text in %s\n", form.Secret, secret)
	if form.Events != "" {
		rows += fmt.Sprintf("  Events\t%s\n", form.Events)
	}
	fmt.Fprintf(w, "\nWebhook, at %s:\n%s", form.Where, term.Align(rows))
}
