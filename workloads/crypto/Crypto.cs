using System;
using System.IO;
using System.IO.Compression;
using System.Security.Cryptography;

namespace Workloads
{
    /// <summary>
    /// Hashes, ciphers, signatures, random numbers and compression: most of
    /// the time in OpenSSL's assembler, whose frames no compiler made. By the
    /// runtime's classes (`managed`, where the runtime finds an OpenSSL that
    /// it knows: .NET Core 3.1 knows 1.1 and older) and by libcrypto's own
    /// functions (`direct`). What is random is checked and not printed.
    /// </summary>
    public static class Crypto
    {
        private static readonly byte[] Data = MakeData();
        private static readonly byte[] Key = Slice(0, 32);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var hashed = new Checked("hashed");
            var encrypted = new Checked("encrypted");
            var compressed = new Checked("compressed");
            bool managed = Libcrypto.IsKnownToTheRuntime();
            Console.WriteLine("managed " + managed);
            var own = managed ? new Signer() : null;
            var libcrypto = new Libcrypto(Data, Key);
            while (run.More())
            {
                long hash = libcrypto.HashDirect();
                if (managed && hash != HashManaged())
                {
                    throw new InvalidOperationException("hashes differ");
                }
                hashed.Add(hash);
                long cipher = libcrypto.EncryptDirect();
                if (managed && cipher != EncryptManaged())
                {
                    throw new InvalidOperationException("ciphers differ");
                }
                encrypted.Add(cipher);
                libcrypto.SignDirect();
                libcrypto.RandomDirect();
                if (managed)
                {
                    own.SignManaged(Data);
                    RandomManaged();
                }
                compressed.Add(CompressDeflate() * 31 + CompressBrotli());
            }
            hashed.Print();
            encrypted.Print();
            compressed.Print();
            run.End();
            return 0;
        }

        /// <summary>The same in every run: something that can be compressed, but not well.</summary>
        private static byte[] MakeData()
        {
            var data = new byte[256 << 10];
            uint x = 1;
            for (int i = 0; i < data.Length; i++)
            {
                x = x * 1664525 + 1013904223;
                data[i] = (byte)((x >> 24) & (i % 3 == 0 ? 0xffu : 0x0fu));
            }
            return data;
        }

        private static byte[] Slice(int start, int length)
        {
            var slice = new byte[length];
            Array.Copy(Data, start, slice, 0, length);
            return slice;
        }

        /// <summary>A few bytes of what was computed, in order.</summary>
        internal static long Mix(long sum, byte[] bytes)
        {
            foreach (byte b in bytes)
            {
                sum = sum * 31 + b;
            }
            return sum;
        }

        private static long HashManaged()
        {
            long sum = 0;
            using (var sha1 = SHA1.Create())
            using (var sha256 = SHA256.Create())
            using (var sha512 = SHA512.Create())
            using (var md5 = MD5.Create())
            using (var hmac = new HMACSHA256(Key))
            {
                foreach (HashAlgorithm hash in new HashAlgorithm[] { sha1, sha256, sha512, md5, hmac })
                {
                    sum = Mix(sum, hash.ComputeHash(Data));
                }
            }
            return sum;
        }

        private static long EncryptManaged()
        {
            long sum = 0;
            using (var aes = Aes.Create())
            {
                aes.Mode = CipherMode.CBC;
                aes.Padding = PaddingMode.None;
                using (var encryptor = aes.CreateEncryptor(Key, Slice(100, 16)))
                {
                    sum = Mix(sum, Last(encryptor.TransformFinalBlock(Data, 0, Data.Length)));
                }
            }
            using (var gcm = new AesGcm(Key))
            {
                var text = new byte[Data.Length];
                var tag = new byte[16];
                gcm.Encrypt(Slice(200, 12), Data, text, tag);
                sum = Mix(Mix(sum, Last(text)), tag);
            }
            return sum;
        }

        internal static byte[] Last(byte[] bytes)
        {
            var last = new byte[64];
            Array.Copy(bytes, bytes.Length - 64, last, 0, 64);
            return last;
        }

        private static void RandomManaged()
        {
            var bytes = new byte[64 << 10];
            using (var random = RandomNumberGenerator.Create())
            {
                random.GetBytes(bytes);
            }
            Libcrypto.NotConstant(bytes);
        }

        private static long CompressDeflate()
        {
            return Compress(stream => new DeflateStream(stream, CompressionLevel.Fastest, true),
                stream => new DeflateStream(stream, CompressionMode.Decompress));
        }

        private static long CompressBrotli()
        {
            return Compress(stream => new BrotliStream(stream, CompressionLevel.Fastest, true),
                stream => new BrotliStream(stream, CompressionMode.Decompress));
        }

        /// <summary>Compresses and expands; libraries differ in what is between.</summary>
        private static long Compress(Func<Stream, Stream> compress, Func<Stream, Stream> expand)
        {
            var small = new MemoryStream();
            using (Stream stream = compress(small))
            {
                stream.Write(Data, 0, Data.Length);
            }
            small.Position = 0;
            var whole = new MemoryStream();
            using (Stream stream = expand(small))
            {
                stream.CopyTo(whole);
            }
            return Mix(whole.Length, Last(whole.ToArray()));
        }

        /// <summary>Keys of the runtime's classes.</summary>
        private sealed class Signer
        {
            private readonly RSA rsa = RSA.Create(2048);
            private readonly ECDsa ecdsa = ECDsa.Create(ECCurve.NamedCurves.nistP256);
            private readonly ECDsa wide = ECDsa.Create(ECCurve.NamedCurves.nistP384);

            public void SignManaged(byte[] data)
            {
                byte[] signature = rsa.SignData(data, 0, 1000, HashAlgorithmName.SHA256, RSASignaturePadding.Pkcs1);
                bool right = rsa.VerifyData(data, 0, 1000, signature, HashAlgorithmName.SHA256, RSASignaturePadding.Pkcs1);
                foreach (ECDsa key in new[] { ecdsa, wide })
                {
                    signature = key.SignData(data, 0, 1000, HashAlgorithmName.SHA256);
                    right &= key.VerifyData(data, 0, 1000, signature, HashAlgorithmName.SHA256);
                }
                if (!right)
                {
                    throw new InvalidOperationException("a signature is wrong");
                }
            }
        }
    }
}
