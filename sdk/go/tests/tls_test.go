package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	ringfence "ringfence.dev/sdk/go"
	"ringfence.dev/sdk/go/ringfencetest"
)

// An authority signs certificates for 127.0.0.1, which are files of a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	made, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(made); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(a.dir, "ca.pem"), "CERTIFICATE", made)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, path, kind string, der []byte) {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue makes a certificate, and returns its file and that of its key.
func (a *authority) issue(t *testing.T, name string) (string, string) {
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	write(t, certFile, "CERTIFICATE", made)
	write(t, keyFile, "PRIVATE KEY", private)
	return certFile, keyFile
}

// serve has a cluster behind TLS that wants certificates of its clients, and counts the requests that show the secret.
func serve(t *testing.T, a *authority) (url string, shown *atomic.Int32) {
	cluster := ringfencetest.Start(t)
	shown = &atomic.Int32{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer secret" {
			shown.Add(1)
		}
		cluster.ServeHTTP(w, r)
	}))
	pair, err := tls.LoadX509KeyPair(a.issue(t, "node"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, shown
}

func TestBothSidesShowCertificatesAndTheClientItsCredential(t *testing.T) {
	own := newAuthority(t)
	url, shown := serve(t, own)
	ca := ringfence.WithCA(filepath.Join(own.dir, "ca.pem"))
	client, err := ringfence.New([]string{url}, ca, ringfence.WithCertificate(own.issue(t, "client")), ringfence.WithCredential("secret"))
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Acquire(t.Context(), "a")
	if err != nil || lease.Release(t.Context()) != nil || shown.Load() != 2 {
		t.Error(err, shown)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// A node that wants a certificate says so only after the handshake.
	nobody, err := ringfence.New([]string{url}, ca)
	if err != nil {
		t.Fatal(err)
	}
	_, err = nobody.Acquire(t.Context(), "a")
	if unavailable := (*ringfence.UnavailableError)(nil); !errors.As(err, &unavailable) {
		t.Error(err)
	}
	if err := nobody.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestACertificateThatWasReplacedIsUsed(t *testing.T) {
	own, other := newAuthority(t), newAuthority(t)
	url, _ := serve(t, own)
	certFile, keyFile := other.issue(t, "client")
	client, err := ringfence.New([]string{url}, ringfence.WithCA(filepath.Join(own.dir, "ca.pem")), ringfence.WithCertificate(certFile, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Acquire(t.Context(), "a"); err == nil {
		t.Error("a certificate of a foreign authority was good enough")
	}
	newCert, newKey := own.issue(t, "replaced")
	for from, to := range map[string]string{newCert: certFile, newKey: keyFile} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Acquire(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAnErrorOfAFileNamesTheFieldAndTheFile(t *testing.T) {
	own := newAuthority(t)
	certFile, keyFile := own.issue(t, "client")
	_, otherKey := own.issue(t, "other")
	urls := []string{"https://127.0.0.1:1"}
	for field, option := range map[string]ringfence.ClientOption{
		"ca":         ringfence.WithCA(keyFile),
		"cert":       ringfence.WithCertificate(certFile+"x", keyFile),
		"key":        ringfence.WithCertificate(certFile, otherKey),
		"credential": ringfence.WithCredential("two words"),
	} {
		_, err := ringfence.New(urls, option)
		if invalid := (*ringfence.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, option := range []ringfence.ClientOption{ringfence.WithCA(certFile), ringfence.WithCredential("secret")} {
		if _, err := ringfence.New([]string{"http://127.0.0.1:1"}, option); err == nil {
			t.Error("plain URLs, and something for TLS")
		}
	}
}
